#!/bin/sh
# as-host.sh HOST COMMAND...: what ssh would do, but on this machine, which calls itself HOST there.
# An MPI that is given this instead of ssh takes the ranks for those of several hosts, as it takes
# guests. Options before HOST are ssh's, and mean nothing here. Needs root.
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
exec unshare --uts sh -c 'hostname "$0" && exec sh -c "$1"' "$host" "$*"
