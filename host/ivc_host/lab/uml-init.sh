#!/bin/sh
# The first process of a user-mode Linux guest.
#
# The guest's root is the host's own root directory, read-only, through hostfs. This script lays a
# writable layer in the guest's memory over it (overlayfs), fresh file systems over what belongs to
# a running system (/dev /proc /sys /run /tmp /dev/shm), sets the network up and stays as the
# parent of sshd. Whatever the guest writes is gone when the guest is.
#
# Kernel parameters: ivc.state=DIR, the guest's state directory on the host; there lies `guest.conf`
# with the settings, and the lab's ssh files.

PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH
set -eu
home=/run/root

fail() {
    echo "ivc guest: $*"
    exit 1
}

# An end of the first process is a panic, whose trace would push the cause off the console's end.
power_off() {
    echo "ivc guest: cannot come up, powering off"
    echo o >/proc/sysrq-trigger
    sleep 10
}
trap power_off EXIT

mount -n -t proc proc /proc
state=$(sed -n 's/.*ivc\.state=\([^ ]*\).*/\1/p' /proc/cmdline)
name='' address='' prefix='' ssh='' share=''
# shellcheck source=/dev/null
. "$state/guest.conf" || fail "cannot read $state/guest.conf"

overlay=/usr/lib/uml/modules/$(uname -r)/kernel/fs/overlayfs/overlay.ko
insmod "$overlay" || fail "cannot load $overlay"
mount -n -t tmpfs -o size=75% tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -n -t overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work overlay /mnt/root ||
    fail "cannot lay a writable layer over the host's root"

root=/mnt/root
mount -n -t proc proc $root/proc
mount -n -t sysfs sysfs $root/sys
mount -n -t devtmpfs devtmpfs $root/dev
mkdir -p $root/dev/pts $root/dev/shm
mount -n -t devpts -o ptmxmode=666,gid=5,mode=620 devpts $root/dev/pts
mount -n -t tmpfs -o mode=1777,size=75% tmpfs $root/dev/shm
mount -n -t tmpfs -o mode=755 tmpfs $root/run
mount -n -t tmpfs -o mode=1777,size=75% tmpfs $root/tmp
mount -n -t tmpfs -o mode=1777,size=75% tmpfs $root/var/tmp
# Shared directories that one of the fresh file systems has hidden.
IFS=:
for directory in $share; do
    if [ ! -d "$root/$directory" ]; then
        mkdir -p "$root/$directory"
        mount -n --bind "$directory" "$root/$directory"
    fi
done
unset IFS
# A home of its own: the start-up files in the host's /root are not meant for a guest.
mkdir -m 700 $root$home $root$home/.ssh
mkdir $root/run/sshd
install -m 600 "$ssh/id" "$ssh/id.pub" "$ssh/authorized_keys" "$ssh/known_hosts" $root$home/.ssh/
install -m 600 "$ssh/host_key" "$ssh/host_key.pub" $root/run/sshd/
cp "$ssh/hosts" $root/etc/hosts
echo "$name" >$root/etc/hostname
# The host's root account may be locked, which would refuse the key as well.
echo 'root:*:19000:0:99999:7:::' >$root/run/shadow
echo "root:x:0:0:root:$home:/bin/bash" >$root/run/passwd
for file in passwd shadow; do
    sed '/^root:/d' /etc/$file >>$root/run/$file
    cat $root/run/$file >$root/etc/$file
done
rm -f $root/run/shadow $root/run/passwd $root/etc/resolv.conf $root/etc/nologin
cat >$root/run/sshd/config <<END
HostKey /run/sshd/host_key
AuthorizedKeysFile $home/.ssh/authorized_keys
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
StrictModes no
MaxStartups 100
MaxSessions 100
PidFile none
PrintMotd no
SetEnv OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 IVC_LAB_GUEST=$name
Subsystem sftp internal-sftp
END
cat >$root$home/.ssh/config <<END
Host *
    IdentityFile $home/.ssh/id
    IdentitiesOnly yes
    UserKnownHostsFile $home/.ssh/known_hosts
    StrictHostKeyChecking yes
    LogLevel ERROR
    ControlMaster auto
    ControlPath $home/.ssh/to-%h
    ControlPersist yes
END

hostname "$name"
ip link set lo up
ip link set vec0 name eth0
ip addr add "$address/$prefix" broadcast + dev eth0
ip link set eth0 up

cd $root
mkdir -p run/host
pivot_root . run/host
echo "ivc guest $name: up, starting sshd"
# This shell stays the first process: it takes in orphans and brings a dead sshd back.
while :; do
    chroot . /usr/sbin/sshd -D -e -f /run/sshd/config </dev/console >/dev/console 2>&1 || sleep 1
done
