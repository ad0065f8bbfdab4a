"""The network that a migration takes, in a namespace without guests."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ivc_host.bench import wire
from ivc_host.bench.programs import BenchError
from ivc_host.bench.wire import Net
from ivc_host.lab import network, process

_MIGRATED = 3_000_000
#: A migration through the loopback interface; and a guest: its tap is opened, it is asked for (ARP) and says something.
_TRAFFIC = f"""\
import fcntl, os, socket, struct, threading
server = socket.create_server(("127.0.0.1", 0))
def send():
    with socket.create_connection(server.getsockname()) as out:
        out.sendall(bytes({_MIGRATED}))
threading.Thread(target=send).start()
taken, _ = server.accept()
while taken.recv(65536):
    pass
tap = os.open("/dev/net/tun", os.O_RDWR)
fcntl.ioctl(tap, 0x400454CA, struct.pack("16sH22x", b"tap-g1-h2", 0x1002))
socket.socket(type=socket.SOCK_DGRAM).sendto(b"?", ("10.77.0.11", 9))
os.write(tap, bytes.fromhex("ffffffffffff5254007700110806") + bytes(46))
"""


@pytest.fixture
def namespace(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0 or not Path("/dev/net/tun").exists():
        pytest.skip("needs root and /dev/net/tun")
    place = tmp_path / "netns"
    network.create(place, ["tap-g1-h2"])
    try:
        yield place
    finally:
        network.remove(place)


def _said(namespace: Path, *words: str) -> str:
    done = subprocess.run([*process.enter(namespace), *words], capture_output=True, text=True, check=True)
    return done.stdout


def _sent(namespace: Path, device: str) -> int:
    """Bytes that have gone through the queue of a device."""
    found = re.search(r"qdisc tbf .*?Sent (\d+) bytes", _said(namespace, "tc", "-s", "qdisc", "show", "dev", device), re.S)
    return int(found[1]) if found else 0


def _carry(namespace: Path) -> None:
    _said(namespace, "python3", "-c", _TRAFFIC)


def _state(namespace: Path) -> str:
    return _said(namespace, "ip", "-o", "link") + _said(namespace, "tc", "qdisc")


def test_migration_and_guests_share_a_wire(namespace: Path) -> None:
    try:
        with wire.laid(namespace, Net("mpi", 1000), ["g1"], 2):
            _carry(namespace)
            there, back = _sent(namespace, "wire-to"), _sent(namespace, "wire-from")
    except BenchError as error:
        pytest.skip(str(error))
    assert there > _MIGRATED
    assert 0 < back < 1000
    assert "wire" not in _state(namespace) and "clsact" not in _state(namespace)


def test_own_network_is_the_migrations_alone(namespace: Path) -> None:
    before = _state(namespace)
    with wire.laid(namespace, Net("own", 1000), ["g1"], 2):
        _carry(namespace)
        assert _sent(namespace, "lo") > _MIGRATED
        assert "wire" not in _state(namespace)
    assert "tbf" not in _state(namespace) and "tbf" not in before
