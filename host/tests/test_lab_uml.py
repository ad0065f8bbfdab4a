"""Labs of user-mode Linux guests, with real guests; above all, that nothing of a lab is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ivc_host.bench.places import two_guests
from ivc_host.errors import LabError, UsageError
from ivc_host.lab import lab as labs
from ivc_host.lab import process, state
from ivc_host.lab.hypervisor import HostSpec
from ivc_host.lab.uml import UserModeLinux

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a lab needs root")

#: Unlike any name that a user would give, so that the tests never meet a user's lab.
NAME = f"t{os.getpid()}"


def traces(name: str) -> dict[str, list[str]]:
    """Everything on this machine that bears a lab's name, or belongs to a guest of it."""
    directory = str(state.directory(name))
    found = {
        "files": [
            str(path)
            for path in (state.directory(name), state.region_path(name))
            if os.path.lexists(path)
        ],
        "mounts": [
            line for line in Path("/proc/self/mountinfo").read_text().splitlines()
            if directory in line
        ],
        "processes": [],
        "taps": [one for one in os.listdir("/sys/class/net") if one.startswith("tap-g")],
    }
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            place = os.readlink(entry / "cwd")
        except OSError:
            continue
        if directory in words or place.startswith(directory):
            found["processes"].append(f"{entry.name}: {words}")
    return {kind: items for kind, items in found.items() if items}


def namespaces() -> set[str]:
    """Network namespaces that some process of this machine is in, or that are mounted."""
    inside = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                inside.add(os.readlink(entry / "ns/net"))
            except OSError:
                continue
    lsns = ["lsns", "-t", "net", "-n", "-o", "NS"]
    mounted = subprocess.run(lsns, capture_output=True, text=True).stdout
    return inside | {f"net:[{word}]" for word in mounted.split()}


def open_namespace(name: str) -> str:
    return f"net:[{os.stat(state.namespace(name)).st_ino}]"


@pytest.fixture(scope="module")
def pair() -> Iterator[labs.Lab]:
    with labs.up(f"{NAME}-pair", guests=2, region_size=8 << 20) as lab:
        yield lab
    assert traces(f"{NAME}-pair") == {}


def test_guests_have_kernels_of_their_own(pair: labs.Lab) -> None:
    ours = os.uname().release
    for guest in pair.guests:
        name, release = pair.run(guest, ["uname", "-n", "-r"]).stdout.split()
        assert name == guest
        assert release != ours
    boots = {pair.run(g, ["cat", "/proc/sys/kernel/random/boot_id"]).stdout for g in pair.guests}
    assert len(boots) == len(pair.guests)


def test_guests_share_one_region(pair: labs.Lab) -> None:
    window = "import mmap; f = open('/dev/mmapper', 'r+b'); m = mmap.mmap(f.fileno(), 4096); "
    write = pair.run("g1", ["/usr/bin/python3", "-c", window + "m[:5] = b'hello'"])
    assert write.returncode == 0, write.stderr
    read = pair.run("g2", ["/usr/bin/python3", "-c", window + "print(m[:5])"])
    assert read.stdout.strip() == "b'hello'", read.stderr
    with open(state.region_path(pair.name), "rb") as region:
        assert region.read(5) == b"hello"
    assert state.region_path(pair.name).stat().st_size == 8 << 20


def writable_pages(region: Path) -> dict[str, int]:
    """Of each program of a guest that has the region mapped, in how many of its pages it can store."""
    found = {}
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            lines = [line.split() for line in maps.read_text().splitlines() if line.endswith(str(region))]
        except OSError:
            continue
        if any(words[1].startswith("r-") for words in lines):   # the guests' kernels can store in all of them
            spans = [words[0].split("-") for words in lines if words[1].startswith("rw")]
            found[maps.parent.name] = sum(int(end, 16) - int(start, 16) for start, end in spans) // 4096
    return found


def test_what_a_peer_stores_into_is_mapped_for_storing(pair: labs.Lab) -> None:
    """A client's chunks, some 250 pages, at the server, who only reads them."""
    words = ["--test", "bandwidth", "--sizes", "16K", "--seconds", "3", "--iterations", "1000000", "--magic", "7"]
    most: Counter[str] = Counter()
    with ThreadPoolExecutor(1) as pool:
        both = pool.submit(two_guests, pair, "bench_libivc", words, words, 60)
        while not both.done():
            most |= Counter(writable_pages(state.region_path(pair.name)))
            time.sleep(0.1)
    assert both.result().returncode == 0, both.result().stderr
    assert len(most) == 2
    assert min(most.values()) > 150, most


def test_shared_memory_is_the_guests_own(pair: labs.Lab) -> None:
    pair.run("g1", ["sh", "-c", "echo 1 >/dev/shm/mine"])
    assert pair.run("g2", ["test", "-e", "/dev/shm/mine"]).returncode == 1
    assert not os.path.exists("/dev/shm/mine")


def test_mpirun_goes_over_all_guests(pair: labs.Lab) -> None:
    for np in (2, 4):
        done = pair.mpirun(["hostname"], np=np, timeout=60)
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.split()) == sorted(["g1", "g2"] * (np // 2))
    done = pair.mpirun(["hostname"], np=2, hosts=["g2"], timeout=60)
    assert done.stdout.split() == ["g2", "g2"], done.stderr


def test_environment_and_parameters_reach_the_ranks(pair: labs.Lab) -> None:
    done = pair.mpirun(
        ["sh", "-c", 'echo "$HUE/$OMPI_MCA_btl"'],
        mca={"btl": "tcp,self"},
        env={"HUE": "a 'deep' blue"},
        timeout=60,
    )
    assert done.stdout.splitlines() == ["a 'deep' blue/tcp,self"] * 2, done.stderr


def test_run_passes_words_input_and_exit_code(pair: labs.Lab) -> None:
    words = ["a b", "$HOME", "'", '"', "*", ""]
    done = pair.run("g1", ["printf", "%s|", *words])
    assert done.stdout == "a b|$HOME|'|\"|*||"
    assert pair.run("g1", ["cat"], input="text").stdout == "text"
    assert pair.run("g1", ["sh", "-c", "exit 7"]).returncode == 7
    assert pair.run("g1", ["sh", "-c", "exit 255"]).returncode == 255


def test_a_time_out_ends_the_program_in_the_guest(pair: labs.Lab) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        pair.run("g1", ["sleep", "1234"], timeout=3)
    assert pair.run("g1", ["pgrep", "-f", "sleep 123[4]"]).stdout == ""


@pytest.mark.parametrize("place", ["/etc/ivc-lab-test", "/usr/ivc-lab-test", "/run/ivc-lab-test"])
def test_what_a_guest_writes_stays_in_it(pair: labs.Lab, place: str) -> None:
    assert pair.run("g1", ["touch", place]).returncode == 0
    assert not os.path.exists(place)
    assert pair.run("g2", ["test", "-e", place]).returncode == 1


def test_a_guest_cannot_write_to_its_host_through_hostfs(pair: labs.Lab, tmp_path: Path) -> None:
    """Even root in a guest that mounts the host's directory itself."""
    tmp_path.chmod(0o777)
    for target in (str(tmp_path), "/root", "/dev/shm"):
        line = (
            "mkdir -p /tmp/h && mount -t hostfs none /tmp/h -o " + target
            + " && { mount -o remount,rw /tmp/h; touch /tmp/h/ivc-lab-test; umount /tmp/h; }"
        )
        done = pair.run("g1", ["sh", "-c", line])
        assert "Read-only file system" in done.stderr
        assert not os.path.exists(f"{target}/ivc-lab-test")


def test_a_guest_reaches_nothing_but_its_lab(pair: labs.Lab) -> None:
    routes = pair.run("g1", ["ip", "route"]).stdout.strip().splitlines()
    assert [line.split()[0] for line in routes] == ["10.77.0.0/24"]


def test_the_name_is_taken_while_the_lab_is_up(pair: labs.Lab) -> None:
    with pytest.raises(LabError, match="there is a lab named"):
        labs.up(pair.name)
    assert pair.run("g1", ["true"]).returncode == 0


def test_two_labs_do_not_meet(pair: labs.Lab) -> None:
    other_name = f"{NAME}-other"
    with labs.up(other_name, guests=1, region_size=1 << 20) as other:
        names = {record.name: record.status() for record in labs.listing()}
        assert names[pair.name] == names[other_name] == "up"
        assert open_namespace(pair.name) != open_namespace(other_name)
        # The same address in both, and not the same guest.
        assert other.run("g1", ["cat", "/proc/sys/kernel/random/boot_id"]).stdout != pair.run(
            "g1", ["cat", "/proc/sys/kernel/random/boot_id"]
        ).stdout
        gone = open_namespace(other_name)
    assert traces(other_name) == {}
    assert gone not in namespaces()
    assert pair.run("g2", ["true"]).returncode == 0


def test_guests_of_two_hosts_share_no_memory() -> None:
    name = f"{NAME}-hosts"
    window = "import mmap; f = open('/dev/mmapper', 'r+b'); m = mmap.mmap(f.fileno(), 4096); "
    with labs.up(name, guests=2, hosts=2, region_size=1 << 20) as lab:
        assert [guest.host for guest in labs.attach(name).record.guests] == [1, 2]
        for guest in lab.guests:
            line = f"{window}assert m[:2] == bytes(2); m[:2] = b'{guest}'"
            done = lab.run(guest, ["/usr/bin/python3", "-c", line])
            assert done.returncode == 0, done.stderr
        for host, guest in enumerate(lab.guests, start=1):
            with open(state.region_path(name, host), "rb") as region:
                assert region.read(2) == guest.encode()
        assert lab.run("g1", ["ssh", "g2", "hostname"]).stdout.strip() == "g2"
    assert traces(name) == {}
    assert not state.region_path(name, 2).exists()


def test_a_dead_guest_is_reported() -> None:
    name = f"{NAME}-dead"
    with labs.up(name, guests=2, region_size=None) as lab:
        os.kill(lab.record.guest("g2").processes[0].pid, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while labs.attach(name).record.guest("g2").alive() and time.monotonic() < deadline:
            time.sleep(0.1)
        record = labs.attach(name).record
        assert record.status() == "broken"
        assert record.guest("g1").alive() and not record.guest("g2").alive()
    assert traces(name) == {}


class _NeverReady(UserModeLinux):
    """Guests whose first process ends, or does nothing."""

    ready_timeout = 6.0

    def __init__(self, script: str) -> None:
        self._script = script

    def start(self, host: HostSpec) -> dict[str, list[process.Process]]:
        started = super().start(host)
        for guest in host.guests:
            (guest.state / "init").write_text(f"#!/bin/sh\n{self._script}\n")
        return started


@pytest.mark.parametrize(
    "script, says, shows",
    [
        ("echo no such thing as a bad day; exit 1", "ended while it booted", "Kernel panic"),
        ("echo cannot be bothered; while :; do sleep 1; done", "does not answer ssh", "bothered"),
    ],
    ids=["dies", "hangs"],
)
def test_a_failed_up_shows_the_console_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, script: str, says: str, shows: str
) -> None:
    name = f"{NAME}-fail"
    monkeypatch.setattr(labs, "hypervisor_named", lambda _: _NeverReady(script))
    with pytest.raises(LabError, match=says) as caught:
        labs.up(name, guests=2, region_size=1 << 20)
    assert shows in (caught.value.detail or "")
    assert traces(name) == {}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("after", [0.6, 0.8, 1.5, 3.0])
def test_an_interrupted_up_leaves_nothing(number: signal.Signals, after: float) -> None:
    name = f"{NAME}-cut"
    command = [sys.executable, "-m", "ivc_host", "lab", "up", "--name", name, "--guests", "2"]
    up = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A test runner in the background may have it ignored, which would be inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    time.sleep(after)
    # As a terminal does it: the helpers of the command get the signal as well.
    os.killpg(up.pid, number)
    _, errors = up.communicate(timeout=30)
    assert up.returncode == 128 + number
    assert "Traceback" not in errors
    assert traces(name) == {}


def test_what_a_killed_up_left_is_not_in_the_way() -> None:
    name = f"{NAME}-kill"
    command = [sys.executable, "-m", "ivc_host", "lab", "up", "--name", name, "--guests", "1"]
    up = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 20
    while (record := state.load(name)) is None or not record.guests:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    up.kill()
    up.wait()
    assert state.load(name).status() == "abandoned"  # type: ignore[union-attr]
    with labs.up(name, guests=1):
        pass
    assert traces(name) == {}


@pytest.mark.parametrize(
    "arguments",
    [
        {"name": "../etc"},
        {"name": "UPPER"},
        {"guests": 0},
        {"guests": 1000},
        {"guests": 2, "hosts": 3},
        {"hosts": 0},
        {"region_size": 3 << 20},
        {"region_size": 4096},
        {"memory_mb": 8},
        {"hypervisor": "vmware"},
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        labs.up(**{"name": f"{NAME}-bad", **arguments})  # type: ignore[arg-type]
    assert traces(f"{NAME}-bad") == {}


def test_down_of_nothing_says_so() -> None:
    with pytest.raises(LabError, match="there is no lab named"):
        labs.down(f"{NAME}-nobody")
