"""The first programs of a guest with an image: the archive that its kernel unpacks, and its script.

Two archives lie one behind the other. The base (busybox, a few modules, `init`) is made with the
image and is the same for every guest; the seed (host name, address, keys, what to mount) is made
per guest and is all that tells guests apart, so the image itself is never written to. A guest
without a seed is a probe: it says so on the console and stops.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass, field

#: What a probe guest prints once its kernel has started user space.
PROBE_MARK = "ivc-probe: user space runs"
#: What a guest prints when its root file system and network are up.
READY_MARK = "ivc-guest: ready"

#: Pid 1 until the real root is there. Everything a guest needs to know lies in /seed.
INIT = f"""#!/bin/busybox sh
# Pid 1 of the initramfs: modules, the root (image below, memory above), network, then busybox init.
export PATH=/bin
bb=/bin/busybox

fail() {{
    echo "ivc-guest: $*"
    $bb sleep 1
    $bb poweroff -f
}}

$bb mount -t devtmpfs dev /dev
$bb mount -t proc proc /proc
$bb mount -t sysfs sys /sys
exec </dev/console >/dev/console 2>&1

if [ ! -d /seed ]; then
    echo "{PROBE_MARK}"
    $bb poweroff -f
fi

# A paravirtual device appears a while after its driver.
wait_for() {{
    tries=0
    until "$@"; do
        tries=$((tries + 1))
        [ $tries -lt 300 ] || return 1
        $bb sleep 0.1
    done
}}

while read -r module; do
    $bb insmod "/modules/$module" || fail "module $module does not load"
done </modules/order

read -r disk </seed/disk
wait_for [ -b "/dev/$disk" ] && $bb mount -t ext4 -o ro "/dev/$disk" /lower ||
    fail "no root image on /dev/$disk"
$bb mount -t tmpfs -o mode=755 tmpfs /upper
$bb mkdir /upper/data /upper/work
$bb mount -t overlay -o lowerdir=/lower,upperdir=/upper/data,workdir=/upper/work overlay /root ||
    fail "the root does not mount"

# What makes this guest this guest; ownership and modes as in the archive.
$bb cp -a /seed/root/. /root/

for fs in proc sys dev; do
    $bb mount --move /$fs /root/$fs
done
$bb mkdir -p /root/dev/shm /root/dev/pts /root/run
$bb mount -t tmpfs -o mode=1777 tmpfs /root/dev/shm
$bb mount -t devpts -o mode=620,ptmxmode=666 devpts /root/dev/pts
for stream in fd: stdin:/0 stdout:/1 stderr:/2; do
    $bb ln -s "/proc/self/fd${{stream#*:}}" "/root/dev/${{stream%:*}}"
done
$bb mount -t tmpfs -o mode=755 tmpfs /root/run
$bb mkdir /root/run/sshd

# The disk with that serial number.
numbered() {{
    for block in /root/sys/block/vd*; do
        [ "$($bb cat "$block/serial")" = "$1" ] && echo "/root/dev/${{block##*/}}"
    done
}}

# One line per directory: live (9p), as a disk with a serial number or as one with a name; path.
while read -r kind tag path; do
    $bb mkdir -p "/root$path"
    case $kind in
        9p) $bb mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=262144 "$tag" "/root$path" ;;
        serial) $bb mount -t ext4 -o ro "$(numbered "$tag")" "/root$path" ;;
        disk)
            wait_for [ -b "/root/dev/$tag" ] &&
                $bb mount -t ext4 -o ro "/root/dev/$tag" "/root$path"
            ;;
    esac || fail "$path of the host does not mount"
done </seed/shares

read -r name address </seed/network
$bb hostname "$name"
$bb ip link set lo up
# One network driver at most finds a device here, so that is eth0.
wait_for [ -e /root/sys/class/net/eth0 ]
$bb ip addr add "$address" brd + dev eth0 && $bb ip link set eth0 up || fail "no network device"

echo "{READY_MARK}"
exec $bb switch_root /root /bin/busybox init
"""

#: For busybox init, which also collects the orphans. Part of the seed.
INITTAB = """{first}::respawn:/usr/sbin/sshd -D -e
::ctrlaltdel:/bin/busybox poweroff
::shutdown:/bin/busybox sync
"""

SSHD_CONFIG = """# A guest of a lab: keys only; the cheapest key exchange, for it may be emulated.
HostKey /etc/ssh/ssh_host_ed25519_key
AuthorizedKeysFile /root/.ssh/authorized_keys
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
PrintMotd no
StrictModes no
KexAlgorithms curve25519-sha256
MaxStartups 100
MaxSessions 100
SetEnv OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 IVC_LAB_GUEST={name}
Subsystem sftp internal-sftp
"""


@dataclass
class Archive:
    """A cpio archive of the `newc` kind, the one that the kernel unpacks. Everything is root's."""

    _parts: list[bytes] = field(default_factory=list)
    _made: set[str] = field(default_factory=set)
    _count: int = 0

    def directory(self, path: str, mode: int = 0o755) -> None:
        """Add a directory (and those above it) unless it is there."""
        path = path.strip("/")
        if not path or path in self._made:
            return
        self.directory(path.rpartition("/")[0])
        self._made.add(path)
        self._entry(path, stat.S_IFDIR | mode, b"")

    def file(self, path: str, data: bytes | str, mode: int = 0o644) -> None:
        """Add a file, and the directories above it."""
        path = path.strip("/")
        self.directory(path.rpartition("/")[0])
        self._entry(path, stat.S_IFREG | mode, data.encode() if isinstance(data, str) else data)

    def finish(self) -> bytes:
        """The archive; another one may follow it in the same file."""
        self._entry("TRAILER!!!", 0, b"")
        return b"".join(self._parts)

    def _entry(self, path: str, mode: int, data: bytes) -> None:
        name = path.encode() + b"\0"
        self._count += 1
        # inode, mode, uid, gid, links, mtime, size, device x 2, rdev x 2, length of name, check
        numbers = (self._count, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name), 0)
        header = b"070701" + b"".join(b"%08x" % n for n in numbers)
        # Header and name together, and the data, are each filled up to a multiple of four.
        self._parts.append(_filled(header + name) + _filled(data))


def _filled(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def base(busybox: bytes, modules: list[tuple[str, bytes]]) -> bytes:
    """The archive that all guests share; `modules` in the order in which they can be loaded."""
    archive = Archive()
    for path in ("dev", "proc", "sys", "root", "lower", "upper"):
        archive.directory(path)
    archive.file("bin/busybox", busybox, 0o755)
    archive.file("init", INIT, 0o755)
    for name, data in modules:
        archive.file(f"modules/{name}", data)
    archive.file("modules/order", "".join(f"{name}\n" for name, _ in modules))
    return archive.finish()


@dataclass(frozen=True)
class Seed:
    """What one guest is told."""

    name: str
    #: With the length of the network's prefix, such as 10.0.0.1/24.
    address: str
    #: Kind (9p, serial or disk), tag of the 9p device, serial number or name of the disk, path in
    #: the guest.
    shares: tuple[tuple[str, str, str], ...]
    #: Path in the guest, content and mode.
    files: tuple[tuple[str, bytes, int], ...]
    #: The disk that the root image is on.
    disk: str = "vda"
    #: Lines of /etc/inittab that are to come first.
    inittab: str = ""

    def archive(self) -> bytes:
        """The second archive of this guest."""
        archive = Archive()
        archive.directory("seed")
        archive.file("seed/network", f"{self.name} {self.address}\n")
        archive.file("seed/disk", f"{self.disk}\n")
        archive.file("seed/shares", "".join(f"{' '.join(share)}\n" for share in self.shares))
        archive.directory("seed/root/root", 0o700)
        archive.directory("seed/root/root/.ssh", 0o700)
        archive.file("seed/root/etc/hostname", f"{self.name}\n")
        archive.file("seed/root/etc/inittab", INITTAB.format(first=self.inittab))
        archive.file("seed/root/etc/ssh/sshd_config", SSHD_CONFIG.format(name=self.name))
        for path, data, mode in self.files:
            archive.file(f"seed/root{path}", data, mode)
        return archive.finish()
