"""`ivc migrate`, `attach`, `detach` on real QEMUs: the way there, and back from each step."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import machines
import pytest
from machines import Monitor, World, alive, wait_for

pytestmark = pytest.mark.skipif(
    shutil.which(machines.QEMU) is None, reason=f"{machines.QEMU} is not installed"
)


def group(vm: str, host: str, ranks: int = 1) -> dict[str, Any]:
    """A guest as `ivc_suspend --list` tells it."""
    members = [{"rank": n, "host": host, "pid": 70 + n, "slot": n, "vm": vm} for n in range(ranks)]
    return {"vm": vm, "members": members}


G1 = group("00000000000000aa", "g1")
G2 = group("00000000000000bb", "g2")


@pytest.fixture
def world() -> Iterator[World]:
    # Short: a socket's path has at most 107 bytes.
    one = World(Path(tempfile.mkdtemp(prefix="ivc-test-", dir="/tmp")))
    yield one
    one.close()


@pytest.fixture
def running(world: World) -> World:
    """With g1 on host a, its processes in the region, and a guest that lets go."""
    world.boot()
    world.consent()
    world.members(G1, G2)
    return world


def is_as_before(world: World) -> None:
    """g1 runs on a, has its region in its slot, no order is left, nothing is on b."""
    assert world.state("a") == "running"
    assert world.device("a") == (str(world.region("a")), 0x80)
    orders = world.orders()
    assert sum("given" in line for line in orders) == sum("with" in line for line in orders)
    assert world.state("b") is None


def fails(done: subprocess.CompletedProcess[str], *expected: str, code: int = 1) -> None:
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    last = [line for line in done.stderr.splitlines() if line.startswith("ivc: ")][0]
    for text in expected:
        assert text in last


def slow(world: World, rate: int = 5_000) -> None:
    """Make a migration of g1 take longer than a test waits."""
    monitor = Monitor(world.spare("a"))
    monitor.do("migrate-set-parameters", max_bandwidth=rate)
    monitor.close()


def until(process: subprocess.Popen[str], phase: str) -> None:
    """Return when `migrate --json` has come to a phase."""
    assert process.stdout is not None and process.stderr is not None
    for line in process.stdout:
        if json.loads(line).get("phase") == phase:
            return
    raise AssertionError(process.stderr.read())


def end_of(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    out, error = process.communicate(timeout=60)
    return subprocess.CompletedProcess([], process.returncode, out, error)


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_moves_and_tells(running: World) -> None:
    done = running.run("migrate", "g1", "--to", "b", "--json")
    assert done.returncode == 0, done.stderr
    told = events(done.stdout)
    assert [e["phase"] for e in told if e["event"] == "phase"] == [
        "check", "prepare", "suspend", "detach", "migrate", "switch", "attach",
    ]  # fmt: skip
    assert [e["phase"] for e in told if e["event"] == "phase-done"] == list(told[-1]["phases"])
    report = told[-1]
    assert report["event"] == "done" and report["target"] == "b"
    assert list(report["phases"]) == [e["phase"] for e in told if e["event"] == "phase"]
    assert report["phases"]["suspend"] == 0.012
    assert 0 <= report["downtime"] < 5 and report["notes"] == []
    progress = [e for e in told if e["event"] == "progress"]
    assert progress[-1]["done"] and progress[-1]["transferred"] > 0
    assert running.state("b") == "running"
    assert running.device("b") == (str(running.region("b")), 0x80)
    assert running.state("a") is None
    assert running.orders() == [f"given {running.region('a')} {G1['vm']}", "withdrawn"]


def test_moves_back_again(running: World) -> None:
    for source, target in (("a", "b"), ("b", "a"), ("a", "b")):
        consent = running.consent(source)
        done = running.run("migrate", "g1", "--to", target)
        consent.stop()
        assert done.returncode == 0, done.stderr
        assert f"g1 runs on {target}, region {running.region(target)}" in done.stdout
        assert "stood still for" in done.stdout
        assert (running.state(source), running.state(target)) == (None, "running")


def test_without_region_is_a_plain_migration(world: World) -> None:
    world.boot(region=False)
    world.inventory(b={"region": None})
    done = world.run("migrate", "g1", "--to", "b")
    assert done.returncode == 0, done.stderr
    assert "g1 runs on b, no region" in done.stdout
    lines = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("    ")]
    assert lines == ["check", "prepare", "migrate", "switch", "total"]
    assert world.orders() == []


def test_to_a_waiting_socket(running: World) -> None:
    subprocess.run(running.incoming("b"), check=True)
    wait_for(lambda: machines.answers(running.qmp("b")), "no QEMU waits")
    words = ["migrate", str(running.qmp("a")), "--to", str(running.qmp("b"))]
    done = running.run(*words, "--region", str(running.region("b")), "--guest", "g1")
    assert done.returncode == 0, done.stderr
    assert running.state("b") == "running"
    assert running.device("b") == (str(running.region("b")), 0x80)


def test_over_ssh(running: World, tmp_path: Path) -> None:
    """Both hosts through an ssh server of the test's own."""
    sshd = "/usr/sbin/sshd"
    if not os.path.exists(sshd) or os.geteuid() != 0:
        pytest.skip("needs an ssh server and root")
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    key.with_suffix(".pub").rename(tmp_path / "authorized")
    os.makedirs("/run/sshd", exist_ok=True)
    port = 20000 + os.getpid() % 20000
    options = {
        "HostKey": key, "AuthorizedKeysFile": tmp_path / "authorized", "StrictModes": "no",
        "PidFile": "none", "ListenAddress": "127.0.0.1", "UsePAM": "no", "PermitRootLogin": "yes",
        "SetEnv": f"PATH={running.environment()['PATH']}",
    }  # fmt: skip
    settings = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    server = subprocess.Popen(
        [sshd, "-D", "-e", "-f", "/dev/null", "-p", str(port), *settings],
        stderr=(tmp_path / "log").open("w"),
    )
    own = tmp_path / "bin"
    own.mkdir()
    ssh = [
        *("-p", str(port), "-i", str(key), "-o", "StrictHostKeyChecking=no"),
        *("-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", "root@127.0.0.1"),
    ]
    (running.folder / "bin" / "ivc").write_text(
        f'#!/bin/sh\nexec {machines.sys.executable} -m ivc_host "$@"\n'
    )
    (running.folder / "bin" / "ivc").chmod(0o755)
    running.inventory(a={"ssh": ssh}, b={"ssh": ssh})
    try:
        done = running.run("migrate", "g1", "--to", "b", "--json")
    finally:
        server.terminate()
        server.wait()
    assert done.returncode == 0, done.stderr + (tmp_path / "log").read_text()
    assert running.state("b") == "running" and running.state("a") is None
    assert running.device("b") == (str(running.region("b")), 0x80)
    assert running.orders() == [f"given {running.region('a')} {G1['vm']}", "withdrawn"]
    assert done.stderr == ""


def test_a_rank_that_does_not_answer_is_named(running: World) -> None:
    running.mode("silent 0.2")
    done = running.run("migrate", "g1", "--to", "b", "--timeout", "0.2")
    fails(
        done,
        "rank 3 on g1 (pid 77) did not answer: its heart stands still",
        "it runs on a as before",
    )
    is_as_before(running)


def test_a_library_of_before_is_named(running: World) -> None:
    running.mode("old")
    done = running.run("migrate", "g1", "--to", "b")
    fails(done, "rank 3 on g1 (pid 77): it uses a library", "it runs on a as before")
    assert running.state("a") == "running" and running.state("b") is None


def test_a_guest_that_keeps_the_device(world: World) -> None:
    world.boot()
    world.members(G1)
    done = world.run("migrate", "g1", "--to", "b", "--detach-timeout", "1")
    fails(done, "has not let go of the device in 1 s", "it runs on a as before")
    is_as_before(world)


def test_another_blocker_is_passed_on(world: World) -> None:
    disk = world.folder / "disk"
    disk.write_bytes(bytes(1 << 20))
    world.boot("a", "-drive", f"if=none,id=d,file={disk},format=raw",
               "-device", "nvme,drive=d,serial=x")  # fmt: skip
    world.members(G1)
    done = world.run("migrate", "g1", "--to", "b")
    fails(done, "cannot be migrated", "nvme", "it runs on a as before")
    assert world.orders() == []
    is_as_before(world)


def test_destination_dies_while_memory_moves(running: World) -> None:
    slow(running)
    process = running.start("migrate", "g1", "--to", "b", "--json")
    until(process, "migrate")
    time.sleep(0.5)
    assert running.device("a") is None
    machines.kill(running.pid("b"))
    fails(end_of(process), "g1 was not moved", "it runs on a as before")
    is_as_before(running)


def test_destination_is_frozen(world: World) -> None:
    """As when its host has lost its power: nothing is closed, nothing is taken any more."""
    data = world.folder / "data"
    data.write_bytes(os.urandom(32 << 20))  # more than sockets take for one who does not read
    world.boot("a", "-device", f"loader,file={data},addr=0x1000000,force-raw=on")
    world.consent()
    world.members(G1)
    slow(world, 4 << 20)
    process = world.start("migrate", "g1", "--to", "b", "--stall", "1", "--json")
    until(process, "migrate")
    time.sleep(0.3)
    os.kill(world.pid("b"), signal.SIGSTOP)
    try:
        wait_for(lambda: world.device("a") is not None, "not taken back", 30)
        assert world.state("a") == "running"
    finally:
        os.kill(world.pid("b"), signal.SIGCONT)
    fails(end_of(process), "not a byte has reached b", "it runs on a as before")
    is_as_before(world)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("phase", ["suspend", "detach", "migrate"])
def test_interrupted(world: World, phase: str, number: signal.Signals) -> None:
    world.boot()
    world.members(G1)
    if phase == "suspend":
        world.mode("slow for-ever")
    if phase == "migrate":
        world.consent()
        slow(world)
    process = world.start("migrate", "g1", "--to", "b", "--json")
    until(process, phase)
    time.sleep(0.4)
    process.send_signal(number)
    fails(end_of(process), "interrupted", "it runs on a as before", code=128 + number)
    is_as_before(world)


def test_killed_leaves_no_order(running: World) -> None:
    slow(running)
    process = running.start("migrate", "g1", "--to", "b", "--json")
    until(process, "migrate")
    process.kill()
    process.communicate()
    wait_for(lambda: running.orders()[-1] == "withdrawn", "the order is still given")
    assert running.state("a") == "running"


def test_two_at_once(running: World) -> None:
    slow(running)
    first = running.start("migrate", "g1", "--to", "b", "--json")
    until(first, "migrate")
    for words in (["migrate", "g1", "--to", "b"], ["attach", "g1"], ["detach", "g1"]):
        done = running.run(*words)
        fails(done, f"a migration of g1 (process {first.pid}) is under way")
    by_socket = running.run("detach", str(running.qmp("a")))
    fails(by_socket, f"a migration of g1 (process {first.pid}) is under way")
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=30)
    is_as_before(running)


def test_socket_in_use(running: World) -> None:
    """By another program than ours."""
    other = Monitor(running.qmp("a"))
    done = running.run("migrate", "g1", "--to", "b")
    other.close()
    fails(done, "does not answer", "one program at a time")


def test_name_is_taken(running: World) -> None:
    running.boot("b", region=False)
    done = running.run("migrate", "g1", "--to", "b")
    fails(done, "g1 is on several hosts: a, b")
    assert running.state("a") == running.state("b") == "running"


def test_name_is_taken_by_one_that_waits(running: World) -> None:
    running.boot("b", "-incoming", "defer", region=False)
    done = running.run("migrate", "g1", "--to", "b")
    fails(done, "b holds a machine named g1 already", "it runs on a as before")
    assert running.state("a") == "running"


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (["sh", "-c", "echo no licence >&2; exit 3"], "start command sh failed: no licence"),
        (["/no/such/program"], "No such file"),
    ],
)
def test_no_place_is_made(running: World, start: list[str], expected: str) -> None:
    running.inventory(b={"start": start})
    done = running.run("migrate", "g1", "--to", "b")
    fails(done, expected, "it runs on a as before")
    is_as_before(running)


def test_place_that_runs_by_itself_is_ended(running: World) -> None:
    """A start command that forgets -incoming makes a second copy of the machine."""
    wrong = [word for word in running.incoming("b") if word not in ("-incoming", "defer")]
    running.inventory(b={"start": wrong})
    done = running.run("migrate", "g1", "--to", "b")
    fails(done, "does not wait for a migration", "it runs on a as before")
    is_as_before(running)
    assert not alive(running.pid("b"))


def test_other_hardware_over_there(running: World) -> None:
    """The destination cannot load what comes: another amount of memory."""
    start = ["128" if word == "64" else word for word in running.incoming("b")]
    running.inventory(b={"start": start})
    done = running.run("migrate", "g1", "--to", "b")
    fails(done, "g1 was not moved", "it runs on a as before")
    is_as_before(running)


def bad_region(world: World, how: str) -> None:
    path = world.region("b")
    if how == "gone":
        path.unlink()
    elif how == "small":
        os.truncate(path, 4096)
    elif how == "odd":
        os.truncate(path, 3 << 20)
    elif how == "foreign":
        path.write_bytes(b"x" * machines.SIZE)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("gone", "no such file"),
        ("small", "too small"),
        ("odd", "a power of two"),
        ("foreign", "is foreign"),
    ],
)
def test_destination_without_a_region(running: World, how: str, expected: str) -> None:
    bad_region(running, how)
    done = running.run("migrate", "g1", "--to", "b")
    fails(done, expected, "it runs on a as before")
    assert running.orders() == []
    is_as_before(running)


def test_destination_without_room(running: World) -> None:
    """More processes come than a region of 4 MiB has room for."""
    running.members(group(G1["vm"], "g1", 40))
    done = running.run("migrate", "g1", "--to", "b")
    fails(done, "has no room: 40 processes come", "it runs on a as before")
    is_as_before(running)


def test_region_without_memory_behind_it(running: World) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    small = running.folder / "b"
    target = small / "full"
    target.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1M", "tmpfs", target], check=True)
    try:
        with open(target / "region", "wb") as file:
            file.truncate(machines.SIZE)
        running.inventory(b={"region": str(target / "region")})
        done = running.run("migrate", "g1", "--to", "b")
    finally:
        subprocess.run(["umount", target], check=True)
    fails(done, "MiB are missing", "it runs on a as before")
    is_as_before(running)


def test_unknown_names(running: World) -> None:
    fails(running.run("migrate", "g7", "--to", "b"), "no machine g7", "there are g1 on a", code=2)
    fails(running.run("migrate", "g1", "--to", "c"), "no host c", "it has a, b", code=2)
    fails(running.run("migrate", "g1", "--to", "a"), "g1 is on a already", code=2)
    fails(running.run("migrate", "../x", "--to", "b"), "no QEMU answers", code=2)
    fails(running.run("migrate", "g 1", "--to", "b"), "cannot be a machine's name", code=2)


def test_nobody_knows_whose_processes(running: World) -> None:
    running.members(group(G2["vm"], "node17"))
    done = running.run("migrate", "g1", "--to", "b")
    fails(done, "node17 (1 process, 00000000000000bb)", "--guest none")
    is_as_before(running)
    done = running.run("migrate", "g1", "--to", "b", "--guest", "none")
    assert done.returncode == 0, done.stderr
    assert running.orders() == []


def test_a_mistyped_guest_keeps_its_device(running: World) -> None:
    for words in (["migrate", "g1", "--to", "b"], ["detach", "g1"]):
        done = running.run(*words, "--guest", "typo")
        fails(done, "nobody of 'typo' is in the region; there are g1 (1 process, ")
    assert running.orders() == []
    is_as_before(running)


def test_others_of_the_host_are_no_strangers(running: World) -> None:
    """Processes of g2 alone, and g2 is a machine of that host: nobody of g1 is there."""
    running.boot("a", vm="g2", region=False)
    running.members(G2)
    done = running.run("migrate", "g1", "--to", "b")
    assert done.returncode == 0, done.stderr
    assert len(running.orders()) == 2  # all the same, for those who would come meanwhile


def test_paused_machine(running: World) -> None:
    monitor = Monitor(running.spare("a"))
    monitor.do("stop")
    monitor.close()
    done = running.run("migrate", "g1", "--to", "b")
    fails(done, "is paused", "only one that runs")
    assert running.state("a") != "running" and running.state("b") is None


def test_detach_and_attach(running: World) -> None:
    done = running.run("detach", "g1")
    assert done.returncode == 0, done.stderr
    assert "g1 on a has no region any more" in done.stdout
    assert running.device("a") is None
    assert running.orders() == [f"given {running.region('a')} {G1['vm']}", "withdrawn"]
    fails(running.run("detach", "g1"), "g1 on a has no region")
    done = running.run("attach", str(running.qmp("a")), "--region", str(running.region("b")))
    assert done.returncode == 0, done.stderr
    path, _ = running.device("a") or ("", 0)
    assert path == str(running.region("b"))
    fails(running.run("attach", "g1"), "has a region already")


def test_save_and_load(running: World) -> None:
    file = running.folder / "g1.saved"
    done = running.run("save", "g1", str(file), "--json")
    assert done.returncode == 0, done.stderr
    assert [e["phase"] for e in events(done.stdout) if e["event"] == "phase-done"] == [
        "suspend", "detach", "save",
    ]  # fmt: skip
    assert running.state("a") is None and running.orders()[-1] == "withdrawn"
    fails(running.run("load", "g1", str(running.folder / "mode"), "--at", "b"), "g1 on b")
    assert running.state("b") is None
    done = running.run("load", "g1", str(file), "--at", "b")
    assert done.returncode == 0, done.stderr
    assert running.state("b") == "running"
    path, _ = running.device("b") or ("", 0)
    assert path == str(running.region("b"))


def test_save_is_taken_back(running: World) -> None:
    fails(running.run("save", "g1", str(running.folder / "mode")), "is there already", code=2)
    done = running.run("save", "g1", "/proc/no/file")
    fails(done, "g1 was not saved", "it runs on a as before")
    is_as_before(running)


def test_detach_is_taken_back(world: World) -> None:
    world.boot()
    world.members(G1)
    done = world.run("detach", "g1", "--detach-timeout", "0.5")
    fails(done, "was not taken from g1", "it runs on a as before")
    is_as_before(world)


def test_attach_needs_a_region(running: World) -> None:
    running.run("detach", "g1")
    fails(running.run("attach", str(running.qmp("a"))), "--region", code=2)
    done = running.run("attach", "g1", "--region", str(running.folder / "mode"))
    fails(done, "too small")


def test_without_the_tool(running: World) -> None:
    (running.folder / "bin" / "ivc_suspend").unlink()
    fails(running.run("migrate", "g1", "--to", "b"), "ivc_suspend is not there on a")
    assert running.state("a") == "running"
