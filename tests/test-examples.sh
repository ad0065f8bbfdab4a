#!/bin/sh
# The README's two programs on a fresh region: two clients at once, an error, the end by signal.
# usage: tests/test-examples.sh [BUILD]
set -eu

build=${1:-build}
[ -x "$build/examples/server" ] || { echo "skip: $build/examples/server is not built"; exit 77; }

where=$(mktemp -d /dev/shm/ivc-examples-XXXXXX)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || :; rm -rf "$where"' EXIT
trap 'exit 1' INT TERM
truncate -s 8M "$where/region"
export IVC_REGION="$where/region"

fail() {
    echo "failed: $*"
    cat "$where"/*.out
    exit 1
}

"$build/examples/server" 5 >"$where/server.out" 2>&1 &
server=$!
"$build/examples/client" 5 the first >"$where/first.out" 2>&1 &
first=$!
timeout 30 "$build/examples/client" 5 and the second >"$where/second.out" 2>&1 ||
    fail "the second client"
wait "$first" || fail "the first client"

grep -qx 'client: the server answers: the first' "$where/first.out" || fail "the first answer"
grep -qx 'client: the server answers: and the second' "$where/second.out" || fail "the second answer"
grep -qx 'the first' "$where/server.out" || fail "what the server prints"
grep -qx 'and the second' "$where/server.out" || fail "what the server prints"

# Another server of that name is refused, in words.
if timeout 30 "$build/examples/server" 5 >"$where/other.out" 2>&1; then
    fail "a second server of the same group"
fi
grep -q 'that name is taken' "$where/other.out" || fail "the words for a second server"

# ivc_info sees the server, from outside.
"$build/tools/ivc_info" >"$where/info.out" || fail "ivc_info"
grep -q "process $server .*this guest, alive" "$where/info.out" || fail "ivc_info does not see it"

kill -TERM "$server"
wait "$server" || fail "the server's end"
server=

# The paper's own calls.
here=$(dirname "$0")/..
for name in sc07-client sc07-server; do
    cc -std=c11 -D_DEFAULT_SOURCE -Wall -Wextra -Werror -I"$here/include" "$here/examples/$name.c" -o "$where/$name" \
        -L"$build/adapters/c" -livc -Wl,-rpath,"$(cd "$build/adapters/c" && pwd)" >"$where/cc.out" 2>&1 || fail "compiling $name"
done
timeout 30 "$where/sc07-server" 6 >"$where/sc07-server.out" 2>&1 &
server=$!
timeout 30 "$where/sc07-client" 6 >"$where/sc07-client.out" 2>&1 || fail "the paper's client"
wait "$server" || fail "the paper's server"
server=
grep -qx 'client: connected to 0' "$where/sc07-client.out" || fail "the channel's id at the client"
grep -qx 'client: read 6 bytes: hello' "$where/sc07-client.out" || fail "what the paper's client reads"
grep -qx 'server: client 1' "$where/sc07-server.out" || fail "the channel's id at the server"

if IVC_REGION=$where/none timeout 30 "$build/examples/client" 5 x >"$where/none.out" 2>&1; then
    fail "a client without a region"
fi
[ "$(wc -l <"$where/none.out")" = 1 ] || fail "one line for a missing region"
echo "examples: good"
