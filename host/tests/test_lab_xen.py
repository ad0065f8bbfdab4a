"""Labs of Xen guests: real Xen, dom0s and guests on emulated processors; this takes minutes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ivc_host.errors import LabError, MissingError, UsageError
from ivc_host.lab import hosts, image, process, qemu_words, state, xen
from ivc_host.lab import lab as labs
from ivc_host.lab.hypervisor import HostSpec, SilentProgress
from ivc_host.lab.process import Process
from ivc_host.lab.qemu_words import QEMU
from ivc_host.lab.state import GuestRecord, HostRecord, LabRecord

real = [
    pytest.mark.skipif(os.geteuid() != 0, reason="a lab needs root"),
    pytest.mark.skipif(shutil.which(QEMU) is None, reason=f"{QEMU} is not installed"),
]

NAME = f"tx{os.getpid()}"


@pytest.fixture(scope="module")
def made() -> image.Image:
    """The image; without it, and without the packages it is made of, there is nothing to test."""
    if os.geteuid() != 0:
        pytest.skip("a lab needs root")
    try:
        return image.make(SilentProgress(), image.XEN)
    except LabError as error:
        if "mmdebstrap could not install" in str(error):
            pytest.skip(f"the image cannot be made, is this machine online? {error}")
        raise


def shell(lab: labs.Lab, member: str, line: str, timeout: float = 120) -> str:
    done = lab.run(member, ["sh", "-c", line], timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def names(listed: str) -> list[str]:
    """The guests in the output of `xl list`."""
    return [line.split()[0] for line in listed.splitlines()[2:]]


def traces(name: str) -> list[str]:
    """What is left of a lab: files, mounts, processes."""
    directory = str(state.directory(name))
    paths = (Path(directory), state.region_path(name), state.copies_path(name))
    found = [str(path) for path in paths if path.exists()]
    found += [line for line in Path("/proc/mounts").read_text().splitlines() if directory in line]
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if directory.encode() in (entry / "cmdline").read_bytes():
                found.append(str(entry))
        except OSError:
            continue
    return found


def wait_for(what: str, happened: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not happened():
        assert time.monotonic() < end, what
        time.sleep(0.5)


def answers(lab: labs.Lab, guest: str) -> bool:
    """One that has come to another host needs a moment until its network is there."""
    try:
        return lab.run(guest, ["true"], timeout=60).returncode == 0
    except LabError:
        return False


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("copied")
    (directory / "word").write_text("of this machine")
    return directory


@pytest.fixture(scope="module")
def lab(made: image.Image, shared: Path) -> Iterator[labs.Lab]:
    one = labs.up(NAME, 2, "xen", hosts=2, share=[shared])
    try:
        yield one
    finally:
        if state.directory(NAME).exists():  # the last test takes it down
            one.down()


@pytest.mark.usefixtures("lab")
class TestParavirtual:
    """Two hosts with a guest each. The order matters: the last tests end guests and the lab."""

    pytestmark = real

    def test_guests_are_machines_of_their_own(self, lab: labs.Lab, made: image.Image) -> None:
        for guest in lab.guests:
            assert shell(lab, guest, "hostname") == guest
            assert shell(lab, guest, "uname -r") == made.kernel_version
            assert shell(lab, guest, "cat /sys/hypervisor/guest_type") == "PV"
            assert shell(lab, guest, "cat /sys/hypervisor/uuid") == lab.record.guest(guest).uuid
            assert shell(lab, guest, "nproc") == "1"
        assert made.kernel_version in lab.guest_description()
        assert made.xen_version in lab.guest_description()

    def test_devices_of_xen_are_ready(self, lab: labs.Lab) -> None:
        for guest in lab.guests:
            for device in ("gntalloc", "gntdev", "evtchn", "xenbus"):
                shell(lab, guest, f"test -c /dev/xen/{device}")
            assert int(shell(lab, guest, "xenstore-read domid")) > 0

    def test_ranks_in_both_guests(self, lab: labs.Lab) -> None:
        done = lab.mpirun(["hostname"], np=4, mca={"btl": "tcp,self"}, timeout=240)
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.split()) == ["g1", "g1", "g2", "g2"]

    def test_members_reach_one_another(self, lab: labs.Lab) -> None:
        for start, end in (("g1", "g2"), ("g1", "h2"), ("h1", "h2"), ("h2", "g1")):
            assert shell(lab, start, f"ssh {end} hostname") == end

    def test_directories_are_copies(self, lab: labs.Lab, shared: Path) -> None:
        for member in ("g1", "g2", "h1"):
            assert shell(lab, member, f"cat {shared}/word") == "of this machine"
            assert lab.run(member, ["touch", f"{shared}/mine"], timeout=60).returncode != 0

    def test_dom0_runs_xl(self, lab: labs.Lab) -> None:
        for host, guest in (("h1", "g1"), ("h2", "g2")):
            assert names(shell(lab, host, "xl list")) == [guest]
        shell(lab, "h1", "xl debug-keys g && sleep 1")
        assert "gnttab_usage_print_all" in shell(lab, "h1", "xl dmesg")

    def test_there_is_no_region(self, lab: labs.Lab) -> None:
        assert lab.record.regions == [] and not state.region_path(NAME).exists()
        assert lab.record.inventory.read_text().count('hypervisor = "xen"') == 2
        with pytest.raises(LabError, match="g1 is a guest of Xen, which moves its guests itself"):
            hosts.receive(NAME, "g1", "h2", labs.hypervisor_named("xen"))

    def test_the_listing_has_hosts_and_guests(self, lab: labs.Lab) -> None:
        words = [sys.executable, "-m", "ivc_host", "lab", "list", "--json"]
        listed = subprocess.run(words, check=True, capture_output=True, text=True).stdout
        [mine] = [one for one in json.loads(listed) if one["name"] == NAME]
        assert (mine["state"], mine["migrates"], mine["region"]) == ("up", True, None)
        assert [(one["name"], one["address"]) for one in mine["hosts"]] == [
            ("h1", "10.77.0.211"),
            ("h2", "10.77.0.212"),
        ]
        assert [(one["name"], one["host"]) for one in mine["guests"]] == [("g1", 1), ("g2", 2)]
        assert [one["pids"] for one in mine["guests"]] == [one["pids"] for one in mine["hosts"]]

    def test_consoles(self, lab: labs.Lab) -> None:
        assert "Xen" in lab.console("h1").read_text(errors="replace")
        assert "ivc-guest: ready" in lab.console("g2").read_text(errors="replace")
        with pytest.raises(UsageError, match="no guest h3"):
            lab.console("h3")

    def test_time_runs_as_on_this_machine(self, lab: labs.Lab) -> None:
        def read() -> tuple[float, float, float]:
            before = time.monotonic()
            guest = float(shell(lab, "g1", "cat /proc/uptime").split()[0])
            return before, guest, time.monotonic()

        before_1, guest_1, after_1 = read()
        time.sleep(20)
        before_2, guest_2, after_2 = read()
        # Xen's clock is an emulated one, to which it comes back every second.
        assert before_2 - after_1 - 1 <= guest_2 - guest_1 <= after_2 - before_1 + 1

    def test_a_saved_guest_goes_on_elsewhere(self, lab: labs.Lab) -> None:
        boot = shell(lab, "g1", "cat /proc/sys/kernel/random/boot_id")
        shell(lab, "h1", "xl save g1 /store/g1 && sync", 400)
        wait_for("g1 is not missed", lambda: lab.refresh().status() == "broken")
        assert not lab.record.guest("g1").alive() and lab.record.guest("g2").alive()
        shell(lab, "h2", "xl restore /store/g1 && rm /store/g1", 400)
        wait_for("g1 is not found", lambda: lab.refresh().guest("g1").host == 2)
        assert lab.record.status() == "up"
        wait_for("g1 does not answer", lambda: answers(lab, "g1"))
        assert shell(lab, "g1", "cat /proc/sys/kernel/random/boot_id") == boot
        assert shell(lab, "g2", "ssh g1 hostname") == "g1"

    def test_a_dead_guest_is_reported(self, lab: labs.Lab) -> None:
        shell(lab, "g2", "(sleep 1; echo c >/proc/sysrq-trigger) >/dev/null 2>&1 &")
        wait_for("g2 is not missed", lambda: lab.refresh().status() == "broken")
        assert lab.record.guest("g1").alive() and not lab.record.guest("g2").alive()
        assert "Kernel panic" in lab.console("g2").read_text(errors="replace")

    def test_down_leaves_nothing(self, lab: labs.Lab) -> None:
        namespace = lab.record.namespace
        assert traces(NAME)
        lab.down()
        assert process.members(namespace) == []
        assert traces(NAME) == []


@pytest.mark.usefixtures("made")
class TestOthers:
    pytestmark = real

    def test_a_guest_of_the_other_type_moves_while_it_runs(self) -> None:
        name = f"{NAME}v"
        with labs.up(name, 2, "xen-pvh", hosts=2, place=(1, 1)) as lab:
            assert shell(lab, "g1", "cat /sys/hypervisor/guest_type") == "PVH"
            boot = shell(lab, "g1", "cat /proc/sys/kernel/random/boot_id")
            shell(lab, "h1", "xl migrate g1 h2", 500)
            wait_for("g1 is not found", lambda: lab.refresh().guest("g1").host == 2)
            assert lab.record.status() == "up"
            wait_for("g1 does not answer", lambda: answers(lab, "g1"))
            consoles = state.directory(name) / "h2/consoles"
            assert (consoles / "guest-g1--incoming.log").exists(), list(consoles.iterdir())
            assert shell(lab, "g1", "cat /proc/sys/kernel/random/boot_id") == boot
            done = lab.mpirun(["hostname"], timeout=240)
            assert sorted(done.stdout.split()) == ["g1", "g2"], done.stderr
        assert traces(name) == []

    def test_a_xen_that_does_not_start_says_why(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(xen, "_dom0_mb", lambda host: 16)
        name = f"{NAME}x"
        with pytest.raises(LabError, match=r"host h1 of lab .* ended while it booted") as caught:
            labs.up(name, 1, "xen")
        assert "(XEN)" in (caught.value.detail or "")
        assert traces(name) == []

    def test_a_guest_that_xl_cannot_create_says_why(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ordinary = xen._guest_config
        config = 'kernel = "/image/absent"\n'
        monkeypatch.setattr(xen, "_guest_config", lambda *words: ordinary(*words) + config)
        name = f"{NAME}c"
        with pytest.raises(LabError, match=r"host h1 of lab .* ended while it booted") as caught:
            labs.up(name, 1, "xen")
        assert "/image/absent" in (caught.value.detail or "")
        assert "xl cannot create /lab/g1.cfg" in (caught.value.detail or "")
        assert traces(name) == []

    def test_a_guest_that_does_not_boot_shows_its_console(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ordinary = xen._guest_config
        config = f'extra = "{xen._KERNEL_LINE} rdinit=/absent"\n'
        monkeypatch.setattr(xen, "_guest_config", lambda *words: ordinary(*words) + config)
        name = f"{NAME}g"
        with pytest.raises(LabError, match=r"guest g1 of lab .* ended while it booted") as caught:
            labs.up(name, 1, "xen")
        assert "Unable to mount root fs" in (caught.value.detail or "")
        assert traces(name) == []

    def test_an_interrupted_up_leaves_nothing(self) -> None:
        name = f"{NAME}i"
        words = ["lab", "up", "--name", name, "--hypervisor", "xen", "--hosts", "2"]
        up = subprocess.Popen(
            [sys.executable, "-m", "ivc_host", *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        log = state.directory(name) / "h2/console.log"
        wait_for("h2 does not start", lambda: log.exists() and "(XEN)" in log.read_text("latin-1"))
        up.terminate()
        _, errors = up.communicate(timeout=60)
        assert up.returncode == 128 + 15
        assert "Traceback" not in errors
        assert traces(name) == []

    def test_too_little_memory_is_said(self, monkeypatch: pytest.MonkeyPatch) -> None:
        name = f"{NAME}m"
        monkeypatch.setattr(xen, "_available_mb", lambda: 1000)
        with pytest.raises(LabError, match="needs .* MiB of memory.* 1000 MiB available"):
            labs.up(name, 2, "xen", hosts=2)
        assert traces(name) == []


def test_a_missing_qemu_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qemu_words, "QEMU", "qemu-of-nowhere")
    with pytest.raises(MissingError, match="qemu-of-nowhere is not installed"):
        xen.Xen().prepare(SilentProgress())


def test_too_many_hosts_are_refused() -> None:
    with pytest.raises(UsageError, match="41 hosts"):
        hosts.placed(50, 41, None)


def record(tmp_path: Path, *rolls: str | None) -> LabRecord:
    """A lab whose only guest began on the first of hosts that have these lists of guests."""
    me = Process.of(os.getpid())
    machines = []
    for number, roll in enumerate(rolls, start=1):
        file = tmp_path / f"h{number}"
        if roll is not None:
            file.write_text(roll)
        machines.append(HostRecord(f"h{number}", "10.0.0.2", str(file), [me]))
    guest = GuestRecord("g1", "10.0.0.1", [me], 1, "one")
    return LabRecord("l", "xen", [], 0, 1, me, ready=True, guests=[guest], machines=machines)


@pytest.mark.parametrize(
    ("rolls", "host", "status"),
    [
        ((None, None), 1, "up"),  # not started yet
        (("zero\none\n", "zero\n"), 1, "up"),
        (("one", "one"), 1, "up"),  # on its way
        (("zero", "one"), 2, "up"),
        (("zero", None), 1, "broken"),
        (("", ""), 1, "broken"),
    ],
)
def test_a_guest_is_where_a_host_has_it(
    tmp_path: Path, rolls: tuple[str | None, ...], host: int, status: str
) -> None:
    lab = record(tmp_path, *rolls)
    lab.settle()
    assert (lab.guests[0].host, lab.status()) == (host, status)


def test_memory_follows_from_the_guests(monkeypatch: pytest.MonkeyPatch) -> None:
    def needed(guests: int, migrates: bool) -> list[int]:
        lab = record(Path(), None, None)
        lab.guests = [GuestRecord(f"g{n}", f"10.77.0.1{n}", host=1 + n % 2) for n in range(guests)]
        lab.hosts, lab.migrates, lab.memory_mb = 2, migrates, 256
        return [xen._memory_mb(host) for host in hosts.host_specs(lab)]

    assert needed(4, migrates=False)[0] < needed(4, migrates=True)[0] < needed(8, True)[0]
    assert needed(4, migrates=True)[0] > 4 * 256
    assert len(set(needed(4, migrates=True))) == 1
    assert isinstance(hosts.host_specs(record(Path(), None))[0], HostSpec)
