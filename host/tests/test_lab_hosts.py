"""Labs of several "hosts": real QEMU guests that move from one to the other, driven by plain QMP.

What moves a guest in earnest is `ivc migrate`; here it is the lab that is tested: that what it
offers suffices, that a moved guest is the same machine, and that nothing is left of it.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ivc_host.bench import trace
from ivc_host.errors import LabError, UsageError
from ivc_host.lab import copies, hosts, process, state, tsc
from ivc_host.lab import lab as labs
from ivc_host.lab.hypervisor import Copy
from ivc_host.lab.process import Process
from ivc_host.lab.qemu import REGION_DEVICE, SLOT_REGION, Qemu
from ivc_host.lab.qemu_words import QEMU
from ivc_host.lab.state import GuestRecord

real = [
    pytest.mark.skipif(os.geteuid() != 0, reason="a lab needs root"),
    pytest.mark.skipif(shutil.which(QEMU) is None, reason=f"{QEMU} is not installed"),
]

NAME = f"th{os.getpid()}"
REGION_SIZE = 4 << 20
RESOURCE = f"/sys/bus/pci/devices/0000:00:{SLOT_REGION:02x}.0/resource2"


def test_all_of_a_region_is_there(tmp_path: Path) -> None:
    path = tmp_path / "region"
    labs._make_region(path, 4 << 20)
    info = path.stat()
    assert info.st_size == 4 << 20
    assert info.st_blocks * 512 >= 4 << 20  # a guest cannot ask for the pages of a device


def test_regions_larger_than_the_memory_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labs.os, "geteuid", lambda: 0)
    with pytest.raises(LabError, match="more than /dev/shm has left.*--region-size"):
        labs.up(NAME, 2, "uml", region_size=1 << 50)
    size = os.statvfs("/dev/shm")
    half = 1 << ((size.f_bavail * size.f_frsize).bit_length() - 1)  # fits once, and not twice
    with pytest.raises(LabError, match="more than /dev/shm has left"):
        labs.up(NAME, 2, "qemu", region_size=half, hosts=2)


@pytest.mark.parametrize(
    ("guests", "count", "place", "expected"),
    [
        (3, 2, None, [1, 1, 2]),
        (2, 2, None, [1, 2]),
        (4, 1, None, [1, 1, 1, 1]),
        (2, 2, [1, 1], [1, 1]),
        (2, 3, [3, 2], [3, 2]),
    ],
)
def test_guests_are_placed(
    guests: int, count: int, place: list[int] | None, expected: list[int]
) -> None:
    assert hosts.placed(guests, count, place) == expected


@pytest.mark.parametrize(
    ("guests", "count", "place"), [(1, 2, None), (2, 0, None), (2, 2, [1]), (2, 2, [1, 3])]
)
def test_guests_that_cannot_be_placed(guests: int, count: int, place: list[int] | None) -> None:
    with pytest.raises(UsageError):
        hosts.placed(guests, count, place)


def test_a_copy_holds_what_lies_in_it(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    assert [copy.path for copy in copies.of("x", [inner, tmp_path])] == [tmp_path]
    other = Path("/elsewhere")
    assert copies.of("x", [inner, other]) == (
        Copy(state.copies_path("x") / "share0.ext4", inner),
        Copy(state.copies_path("x") / "share1.ext4", other),
    )


def test_a_guest_is_where_its_living_process_is() -> None:
    def record(here: bool, there: bool) -> GuestRecord:
        alive, dead = Process.of(os.getpid()), Process(os.getpid(), 1)
        guest = GuestRecord("g1", "10.0.0.1", [alive if here else dead], 1)
        guest.receiver, guest.receiver_host = [alive if there else dead], 2
        guest.settle()
        return guest

    assert (record(True, True).host, record(True, False).host) == (1, 1)
    moved = record(False, True)
    assert (moved.host, moved.alive(), moved.receiver) == (2, True, [])
    assert (record(False, False).host, record(False, False).alive()) == (1, False)


def test_the_time_stamp_counter_is_measured() -> None:
    tsc.khz.cache_clear()
    first = tsc.khz()
    tsc.khz.cache_clear()
    again = tsc.khz()
    assert first is not None and again is not None
    assert abs(first - again) < first / 100
    assert 200_000 < first < 10_000_000


class Qmp:
    """Just enough of QMP."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(60)
        self._socket.connect(path)
        self._stream = self._socket.makefile("rw")
        self._events: list[str] = []
        assert "QMP" in json.loads(self._stream.readline())
        self("qmp_capabilities")

    def __call__(self, order: str, **arguments: Any) -> Any:
        self._stream.write(json.dumps({"execute": order, "arguments": arguments}) + "\n")
        self._stream.flush()
        while True:
            answer = json.loads(self._stream.readline())
            if "event" in answer:
                self._events.append(answer["event"])
            elif "error" in answer:
                raise AssertionError(f"{order}: {answer['error']}")
            else:
                return answer["return"]

    def wait(self, event: str) -> None:
        while event not in self._events:
            answer = json.loads(self._stream.readline())
            self._events.append(answer.get("event", ""))
        self._events.remove(event)

    def close(self) -> None:
        self._stream.close()
        self._socket.close()


def inventory(lab: labs.Lab) -> dict[str, Any]:
    return tomllib.loads(lab.record.inventory.read_text())["hosts"]


_moves = 0


def move(lab: labs.Lab, guest: str, source: str, target: str) -> None:
    """A planned migration by hand: region off, memory over, region on."""
    global _moves
    _moves += 1
    known = inventory(lab)
    old = Qmp(known[source]["qmp"].format(vm=guest))
    start = [word.format(vm=guest) for word in known[target]["start"]]
    subprocess.run(start, check=True, capture_output=True, timeout=60)
    new = Qmp(known[target]["qmp"].format(vm=guest))
    old("device_del", id=REGION_DEVICE)
    old.wait("DEVICE_DELETED")
    for one in old("qom-list", path="/objects"):
        if one["type"] == "child<memory-backend-file>":
            old("object-del", id=one["name"])  # or its memory would be part of the machine
    new("migrate-incoming", uri=known[target]["listen"])
    port = new("query-migrate")["socket-address"][0]["port"]
    old("migrate", uri=f"tcp:127.0.0.1:{port}")
    while (status := old("query-migrate"))["status"] in ("setup", "active", "device"):
        time.sleep(0.05)
    assert status["status"] == "completed", status
    while not new("query-status")["running"]:
        time.sleep(0.02)
    # A name of its own each time: QEMU 7.2 does not always forget an old one in time.
    memory = {"id": f"m{_moves}", "share": True, "size": lab.record.region_size}
    path = {"mem-path": known[target]["region"]}
    new("object-add", **{"qom-type": "memory-backend-file"}, **memory, **path)
    new(
        "device_add", driver="ivshmem-plain", id=REGION_DEVICE, memdev=memory["id"],
        bus="pci.0", addr=hex(SLOT_REGION),
    )  # fmt: skip
    old("quit")
    old.close()
    new.close()
    end = time.monotonic() + 20
    number = hosts.number_of(lab.record, target)
    while lab.refresh().guest(guest).host != number:
        assert time.monotonic() < end, "the source does not end"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the guests get a copy of: a program that notices memory that went back in time."""
    directory = tmp_path_factory.mktemp("copied")
    source = Path(__file__).with_name("memory_probe.c")
    subprocess.run(
        ["cc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-o", directory / "memory_probe", source],
        check=True,
    )
    return directory


@pytest.fixture(scope="module")
def lab(shared: Path) -> Iterator[labs.Lab]:
    if os.geteuid() != 0 or shutil.which(QEMU) is None:
        pytest.skip("a lab needs root and QEMU")
    sizes = {"region_size": REGION_SIZE, "memory_mb": 384}
    one = labs.up(NAME, 2, "qemu", hosts=2, place=(1, 1), share=[shared], **sizes)
    try:
        for number, region in enumerate(one.record.regions, start=1):
            with open(region, "r+b") as file:
                file.seek(4096)
                file.write(b"region %d" % number)
        yield one
    finally:
        if state.directory(NAME).exists():  # the last test takes it down
            one.down()


def seen(lab: labs.Lab, guest: str) -> str:
    """Which region a guest sees, by what lies in it."""
    probe = next(path for path in lab.record.shares if path.endswith("copied0"))
    done = lab.run(guest, [f"{probe}/memory_probe", "look", RESOURCE], timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.usefixtures("lab")
class TestMoves:
    pytestmark = real

    def test_nothing_in_a_guest_blocks_migration(self, lab: labs.Lab) -> None:
        assert lab.record.migrates
        qmp = Qmp(inventory(lab)["h1"]["qmp"].format(vm="g1"))
        blocked = qmp("query-migrate").get("blocked-reasons", [])
        qmp.close()
        # The region itself is the only one, and it can be taken away.
        assert len(blocked) == 1 and "ivshmem" in blocked[0]

    def test_copies_are_read_only_and_complete(self, lab: labs.Lab, shared: Path) -> None:
        program = (shared / "memory_probe").read_bytes()
        size = lab.run("g2", ["stat", "-c", "%s", str(shared / "memory_probe")], timeout=60).stdout
        assert int(size) == len(program)
        assert lab.run("g2", ["touch", str(shared / "mine")], timeout=60).returncode != 0

    def test_a_moved_guest_is_the_same_machine(self, lab: labs.Lab) -> None:
        def identity() -> str:
            line = "cat /sys/class/dmi/id/product_uuid /proc/sys/kernel/random/boot_id; hostname"
            return lab.run("g1", ["sh", "-c", line], timeout=60).stdout

        before = identity()
        assert lab.record.guest("g1").uuid in before
        assert seen(lab, "g1") == "region 1"
        move(lab, "g1", "h1", "h2")
        assert identity() == before
        assert seen(lab, "g1") == "region 2"
        assert lab.record.guest("g1").alive() and lab.record.status() == "up"
        # The network reaches it from the host (above) and from the other guest.
        done = lab.run("g2", ["ssh", "g1", "hostname"], timeout=60)
        assert done.stdout.strip() == "g1"
        move(lab, "g1", "h2", "h1")
        assert identity() == before
        assert seen(lab, "g1") == "region 1"

    def test_no_write_to_memory_is_lost(self, lab: labs.Lab, shared: Path) -> None:
        """QEMU before 9.0 loses some, under TCG, when a guest's memory has a round size."""
        with lab.mpi_job([str(shared / "memory_probe"), "count", "32", _STOP], ["g1"]) as job:
            job.wait_for("counting", 60)
            for _ in range(2):
                move(lab, "g1", "h1", "h2")
                move(lab, "g1", "h2", "h1")
            lab.run("g1", ["touch", _STOP], timeout=60)
            done = job.finish(120)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "went back: 0" in done.stdout

    def test_a_second_receiver_is_refused(self, lab: labs.Lab) -> None:
        mechanism = Qemu()
        with pytest.raises(LabError, match="g2 is on h1"):
            hosts.receive(NAME, "g2", "h1", mechanism)
        with pytest.raises(UsageError, match="no host h3"):
            hosts.receive(NAME, "g2", "h3", mechanism)
        path = hosts.receive(NAME, "g2", "h2", mechanism)
        with pytest.raises(LabError, match="waiting on h2.*already"):
            hosts.receive(NAME, "g2", "h2", mechanism)
        Qmp(str(path))("quit")
        record = state.load(NAME)
        assert record is not None and record.guest("g2").host == 1
        again = _retry(lambda: hosts.receive(NAME, "g2", "h2", mechanism))
        Qmp(str(again))("quit")

    def test_a_guests_clock_is_known(self, lab: labs.Lab) -> None:
        one, other = trace.guest_clock(lab, "g2"), trace.guest_clock(lab, "g2")
        assert abs(one.offset - other.offset) <= one.error + other.error + 0.05
        assert one.error < 1

    def test_down_leaves_nothing(self, lab: labs.Lab) -> None:
        namespace = lab.record.namespace
        lab.down()
        assert process.members(namespace) == []
        for path in (state.directory(NAME), state.copies_path(NAME), *lab.record.regions):
            assert not Path(path).exists()


_STOP = "/run/test-stop"


def _retry(attempt: Any) -> Any:
    """A process that was told to quit takes a moment."""
    for _ in range(50):
        try:
            return attempt()
        except LabError:
            time.sleep(0.1)
    return attempt()


def test_guests_of_one_host_cannot_migrate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "base", lambda: tmp_path)
    (tmp_path / "one").mkdir()
    me = Process.of(os.getpid())
    guest = GuestRecord("g1", "10.77.0.11", [me], 1, "0")
    state.LabRecord("one", "qemu", ["/r"], 1, 1, me, ready=True, guests=[guest]).save()
    with pytest.raises(LabError, match="cannot migrate"):
        hosts.receive("one", "g1", "h1", Qemu())
