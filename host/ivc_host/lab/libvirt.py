"""Guests run by libvirt: each host of the lab has a libvirtd of its own, with its own mounts and name.

The daemon lives in the lab's network namespace, and sees its own folders where libvirt has /run/libvirt,
/etc/libvirt and the like: all of them lie in the host's state directory and go with the lab. So do its
QEMUs, which are the guests: the same image, kernel line and slots as with the mechanism `qemu`, and the
region as a `<shmem>`. libvirt itself moves a guest; where it is now is told by the file with the number
of its QEMU, which each daemon keeps.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from ..errors import LabError, MissingError
from ..hypervisor import libvirt
from ..hypervisor.contract import RegionDevice
from . import process, qemu
from .hypervisor import BRIDGE, GuestSpec, HostSpec, Progress
from .process import Process, spawn
from .qemu_words import QEMU, SLOT_DISK, SLOT_NET, SLOT_RNG, SLOT_SHARE, check_shares, tag

_DAEMON = "libvirtd"
_SOCKET_SECONDS = 30.0
#: What libvirt writes to, and where that lies in a host's state directory.
_FOLDERS = {"/run/libvirt": "run", "/etc/libvirt": "etc", "/var/lib/libvirt": "lib",
            "/var/cache/libvirt": "cache", "/var/log/libvirt": "log"}  # fmt: skip
#: Files of /etc to which the daemon's own have lines added: it wants a user that only a package makes
#: which would start a daemon of this machine's, and looks its own name up again and again.
_LINES: dict[str, str | None] = {
    "passwd": "libvirt-qemu:x:64055:64055::/var/lib/libvirt:/usr/sbin/nologin\n",
    "group": "libvirt-qemu:x:64055:\n",
    "hosts": "127.0.0.1 {host}\n",
    # Nobody answers in the lab: refused at once instead of after 15 s.
    "resolv.conf": None,
}
_NOBODY = "nameserver 127.0.0.1\n"

_DAEMON_CONF = """host_uuid = "{uuid}"
auth_unix_rw = "none"
unix_sock_group = "root"
log_outputs = "3:file:/var/log/libvirt/libvirtd.log"
"""
#: One user, no other confinement than the lab's: nothing is left on the machine, and region files of
#: the lab keep their owner.
_QEMU_CONF = """user = "root"
group = "root"
dynamic_ownership = 0
remember_owner = 0
security_driver = "none"
namespaces = []
cgroup_controllers = []
stdio_handler = "file"
"""
#: The daemon sees its own folders under libvirt's names, and calls its host as the lab does.
_START = """set -e
host=$1; state=$2; shift 2
for pair; do
    mkdir -p "${pair%%:*}"
    mount --bind "$state/${pair##*:}" "${pair%%:*}"
done
for file in passwd group hosts resolv.conf; do
    [ ! -e "/etc/$file" ] || mount --bind "$state/etc/$file" "/etc/$file"
done
hostname "$host"
exec libvirtd --pid-file /run/libvirt/libvirtd.pid
"""


def socket_of(state: Path) -> Path:
    """Where the daemon of a host with that state directory listens."""
    return state / "run" / "libvirt-sock"


def uri_of(state: Path) -> str:
    return f"qemu+unix:///system?socket={socket_of(state)}"


def pid_file(state: Path, guest: str) -> Path:
    return state / "run" / "qemu" / f"{guest}.pid"


class Libvirt:
    """The mechanism `libvirt` of a lab."""

    name = "libvirt"
    ready_timeout = 180.0
    default_memory_mb = 512
    migrates = True
    own_hosts = False
    regions = True
    #: libvirt does not move a guest that sees a folder of its host.
    live_shares = False

    def __init__(self) -> None:
        self._qemu = qemu.Qemu()

    def prepare(self, progress: Progress) -> None:
        """libvirt must be there; the image is QEMU's."""
        if shutil.which(_DAEMON) is None:
            raise MissingError(f"{_DAEMON} is not installed", hint="./run setup installs it")
        libvirt.binding()
        self._qemu.prepare(progress)

    def check(self, hosts: Sequence[HostSpec]) -> None:
        for guest in (guest for host in hosts for guest in host.guests):
            check_shares(len(guest.copies))

    def start(self, host: HostSpec) -> dict[str, list[Process]]:
        daemon = _start_daemon(host)
        connection = _connect(host, daemon)
        try:
            for guest in host.guests:
                self._qemu.guest_image.write_archive(qemu.archive(guest), qemu.seed(guest))
                self._create(connection, guest)
            return {guest.name: [_process(host, guest)] for guest in host.guests}
        finally:
            connection.close()

    def _create(self, connection: Any, guest: GuestSpec) -> None:
        try:
            # Defined as well, as an administrator's are: the definition goes with the guest.
            connection.defineXML(self.domain(guest)).create()
        except libvirt.binding().libvirtError as fault:
            raise LabError(f"guest {guest.name}: {fault.get_error_message()}") from None

    def receive(self, spec: GuestSpec) -> list[Process]:
        raise LabError(
            f"{spec.name} is a guest of libvirt, which makes a place for it by itself",
            hint=f"ivc migrate {spec.name} --to h{spec.host} --lab NAME",
        )

    def guest_description(self) -> str:
        return f"libvirt, {self._qemu.guest_description()}"

    @property
    def live(self) -> bool:
        """Whether guests may run while they move: libvirt rounds a guest's memory to MiB, with which
        QEMU 7.2's emulated processors forget pages that were written (`Qemu._memory`)."""
        self._qemu.settle(_Silent())
        return self._qemu.accelerator == "kvm"

    def domain(self, guest: GuestSpec) -> str:
        """The guest for libvirt: the same on every host, but for its region."""
        native = self._qemu.accelerator == "kvm"
        root = _element("domain", {"type": "kvm" if native else "qemu"})
        _element("name", text=guest.name, parent=root)
        _element("uuid", text=guest.uuid, parent=root)
        _element("memory", {"unit": "MiB"}, str(guest.memory_mb), root)
        # Room for one more: alone, an emulated processor takes short cuts with atomics.
        _element("vcpu", {"current": "1"}, "2", root)
        _element("cpu", {"mode": "host-passthrough" if native else "maximum"}, parent=root)
        self._boot(root, guest)
        _element("acpi", parent=_element("features", parent=root))  # or nothing can be plugged in
        _element("on_reboot", text="destroy", parent=root)
        _element("on_crash", text="destroy", parent=root)
        self._devices(_element("devices", parent=root), guest)
        return ElementTree.tostring(root, encoding="unicode")

    def _boot(self, root: ElementTree.Element, guest: GuestSpec) -> None:
        system = _element("os", parent=root)
        _element("type", {"arch": "x86_64", "machine": "pc"}, "hvm", system)
        _element("kernel", text=str(self._qemu.guest_image.kernel), parent=system)
        _element("initrd", text=str(qemu.archive(guest)), parent=system)
        _element("cmdline", text=self._qemu.kernel_line(), parent=system)

    def _devices(self, devices: ElementTree.Element, guest: GuestSpec) -> None:
        _element("emulator", text=shutil.which(QEMU) or QEMU, parent=devices)
        _element("controller", {"type": "usb", "model": "none"}, parent=devices)
        _element("memballoon", {"model": "none"}, parent=devices)
        _disk(devices, self._qemu.guest_image.root, "vda", SLOT_DISK)
        for number, copy in enumerate(guest.copies):
            disk = _disk(devices, copy.image, f"vd{chr(ord('b') + number)}", SLOT_SHARE + number)
            _element("serial", text=tag(number), parent=disk)
        network = _element("interface", {"type": "bridge"}, parent=devices)
        _element("source", {"bridge": BRIDGE}, parent=network)
        _element("mac", {"address": guest.mac}, parent=network)
        _element("model", {"type": "virtio"}, parent=network)
        _element("rom", {"enabled": "no"}, parent=network)
        _slot(network, SLOT_NET)
        random = _element("rng", {"model": "virtio"}, parent=devices)
        _element("backend", {"model": "random"}, "/dev/urandom", random)
        _slot(random, SLOT_RNG)
        serial = _element("serial", {"type": "file"}, parent=devices)
        _element("source", {"path": str(guest.console), "append": "on"}, parent=serial)
        if guest.region is not None:
            place = ("0x0000:0x00", f"{qemu.SLOT_REGION:#x}.0x0")
            device = RegionDevice(str(guest.region), guest.region_size, "", "", *place)
            devices.append(ElementTree.fromstring(libvirt.shmem_xml(device)))


class _Silent:
    def step(self, text: str) -> None:
        del text


def _element(
    name: str,
    attributes: dict[str, str] | None = None,
    text: str | None = None,
    parent: ElementTree.Element | None = None,
) -> ElementTree.Element:
    made = ElementTree.Element(name, attributes or {})
    made.text = text
    if parent is not None:
        parent.append(made)
    return made


def _disk(
    devices: ElementTree.Element, image: Path, name: str, slot: int
) -> ElementTree.Element:
    disk = _element("disk", {"type": "file", "device": "disk"}, parent=devices)
    _element("driver", {"name": "qemu", "type": "raw"}, parent=disk)
    _element("source", {"file": str(image)}, parent=disk)
    _element("target", {"dev": name, "bus": "virtio"}, parent=disk)
    _element("readonly", parent=disk)
    _slot(disk, slot)
    return disk


def _slot(device: ElementTree.Element, slot: int) -> None:
    _element("address", {"type": "pci", "bus": "0x00", "slot": f"{slot:#x}"}, parent=device)


def _start_daemon(host: HostSpec) -> Process:
    for folder in _FOLDERS.values():
        (host.state / folder).mkdir(parents=True)
    _configure(host)
    return _spawn_daemon(host.name, host.state, host.namespace)


def _configure(host: HostSpec) -> None:
    own = uuid.uuid5(uuid.NAMESPACE_URL, str(host.state))
    (host.state / "etc" / "libvirtd.conf").write_text(_DAEMON_CONF.format(uuid=own))
    (host.state / "etc" / "qemu.conf").write_text(_QEMU_CONF)
    for name, lines in _LINES.items():
        ours = Path("/etc", name).read_text() + lines.format(host=host.name) if lines else _NOBODY
        (host.state / "etc" / name).write_text(ours)


def restart(name: str, state: Path, namespace: Path) -> Process:
    """The daemon of that host is killed, as by a crash, and another one begins; its QEMUs go on."""
    os.kill(int((state / "run" / f"{_DAEMON}.pid").read_text()), signal.SIGKILL)
    return _spawn_daemon(name, state, namespace)


def _spawn_daemon(name: str, state: Path, namespace: Path) -> Process:
    pairs = [f"{path}:{folder}" for path, folder in _FOLDERS.items()]
    words = ["unshare", "--mount", "--uts", "--propagation", "private", "--"]
    words += ["sh", "-c", _START, _DAEMON, name, str(state), *pairs]
    # Without systemd and D-Bus, wherever the lab runs: it has neither of its own.
    env = {key: word for key, word in os.environ.items() if not key.startswith("DBUS_")}
    return spawn(words, namespace=namespace, cwd=state, output=_log(state), env=env)


def _log(state: Path) -> Path:
    return state / "daemon.log"


def _connect(host: HostSpec, daemon: Process) -> Any:
    lib = libvirt.binding()
    end = time.monotonic() + _SOCKET_SECONDS
    while daemon.alive() and time.monotonic() < end:
        with suppress(lib.libvirtError):
            return lib.open(uri_of(host.state))
        time.sleep(0.1)
    raise LabError(
        f"the {_DAEMON} of host {host.name} does not start", hint="the end of its log:",
        detail=process.tail(_log(host.state)) + "\n" + process.tail(host.state / "log/libvirtd.log", 10),
    )  # fmt: skip


def _process(host: HostSpec, guest: GuestSpec) -> Process:
    try:
        return Process.of(int(pid_file(host.state, guest.name).read_text()))
    except (OSError, ValueError):
        raise LabError(
            f"guest {guest.name} ended at once",
            detail=process.tail(host.state / "log" / "qemu" / f"{guest.name}.log"),
        ) from None
