#!/bin/sh
# Dom0 of a lab's host with Xen. Busybox init runs it twice: `daemons` before sshd starts, so that
# who can log in finds Xen at work, and `guests` beside it.
#
# /lab is the host's directory in the lab's state; /store is for large files, the same for all hosts;
# /image has the guests' kernel. What goes wrong here ends the machine: the lab looks for that.
set -u
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
exec </dev/console >/dev/console 2>&1

fail() {
    echo "ivc-host: $*"
    sleep 1
    /bin/busybox poweroff -f
}

directory() {
    mkdir -p "/$1" &&
        mount -t 9p -o "trans=virtio,version=9p2000.L,msize=262144,$2" "$1" "/$1" ||
        fail "/$1 does not mount"
}

# The network card becomes a port of a bridge, which takes over its address.
bridge() {
    address=$(ip -4 -o addr show dev eth0 | awk '{ print $4 }')
    ip addr flush dev eth0 &&
        ip link add br0 type bridge &&
        ip link set eth0 master br0 &&
        ip addr add "$address" brd + dev br0 &&
        ip link set br0 up ||
        fail "no bridge"
}

daemons() {
    directory lab rw
    # Cached, because Xen writes guests' pages to files without a copy, which 9p alone cannot take.
    directory store rw,cache=loose
    # Nobody changes it. Without a cache the mapped kernel is read page by page: 20 s for each guest.
    directory image ro,cache=loose
    bridge
    /etc/init.d/xen start
    xl list || fail "Xen's daemons do not work"
}

guests() {
    for config in /lab/*.cfg; do
        [ -e "$config" ] || break
        xl create -q "$config" || fail "xl cannot create $config"
    done
    # Who is dying (d; its memory may be in use by another guest) no longer lives.
    xenstore-watch @introduceDomain @releaseDomain | while read -r _; do
        xl list -v | awk 'NR > 1 && $5 !~ /d/ { print $7 }' >/lab/guests.new &&
            mv /lab/guests.new /lab/guests
    done
}

"$1"
