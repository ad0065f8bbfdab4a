"""`ivc region` on real files, with a real member: the example server of the build directory."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ivc_host import paths, window
from ivc_host import region as region_module

SERVER = paths.build() / "examples" / "server"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ivc_host", "region", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def fails(words: list[str], *expected: str, code: int = 1) -> None:
    done = run(*words)
    assert done.returncode == code, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    for text in expected:
        assert text in done.stderr


@pytest.fixture
def region(tmp_path: Path) -> str:
    path = str(tmp_path / "window")
    assert run("create", path, "--size", "2M").returncode == 0
    return path


@pytest.fixture
def server(region: str) -> Iterator[subprocess.Popen[str]]:
    if not SERVER.exists():
        pytest.skip(f"{SERVER} is not built")
    process = subprocess.Popen(
        [SERVER, "77"],
        env={**os.environ, "IVC_REGION": region},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert "waiting" in process.stdout.readline()
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_created_file_has_size_and_mode(tmp_path: Path) -> None:
    path = tmp_path / "w"
    assert run("create", str(path), "--size", "3M", "--mode", "640").returncode == 0
    info = path.stat()
    assert (info.st_size, info.st_mode & 0o777) == (3 << 20, 0o640)
    assert info.st_blocks * 512 >= 3 << 20  # the memory is there, not only promised
    assert window.read(str(path)).state == "unformatted"


def test_show_tells_what_is_not_there_yet(tmp_path: Path) -> None:
    path = tmp_path / "w"
    path.touch()
    os.truncate(path, 4 << 20)
    assert f"fallocate -l {4 << 20} {path}" in run("show", str(path)).stdout
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, 4 << 20)
    assert "sparse" not in run("show", str(path)).stdout


def test_create_refuses(region: str, tmp_path: Path) -> None:
    fails(["create", region], "exists already")
    fails(["create", str(tmp_path / "a"), "--size", "1000"], "at least 1 MiB", code=2)
    fails(["create", str(tmp_path / "a"), "--size", "many"], "is not a size", code=2)
    fails(["create", str(tmp_path / "a"), "--mode", "9"], "is not a mode", code=2)
    fails(["create", str(tmp_path / "a"), "--group", "no-such"], "no such group", code=2)
    fails(["create", str(tmp_path / "a"), "--size", "99999999999999999G"], "that large", code=2)
    fails(["create", str(tmp_path / "a"), "--size", "8589934591G"], "bytes large")
    fails(["create", str(tmp_path / "no" / "a")], "No such file")
    fails(["create", ""], "needs a path", code=2)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    "call, expected", [("posix_fallocate", "bytes large"), ("fchown", "group"), ("fchmod", "mode")]
)
def test_each_step_of_create_has_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, expected: str
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(window.RegionError, match=f"cannot .*{expected}") as caught:
        region_module.create(str(tmp_path / "a"), "1M", "660", "root")
    assert ("huge pages" in str(caught.value)) == (call == "posix_fallocate")
    assert not (tmp_path / "a").exists()


def test_what_a_killed_create_left_can_be_removed(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.touch(0o600)
    assert run("remove", str(path)).returncode == 0
    assert not path.exists()
    path.touch(0o644)  # an empty file of somebody's
    fails(["remove", str(path)], "too small")
    assert path.exists()


@pytest.fixture
def listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[str, list[str]]]:
    """`region list` of one folder: what it prints, and the lines of its standard error."""
    monkeypatch.setattr(region_module, "_FOLDERS", [str(tmp_path)])
    monkeypatch.setattr(window, "WELL_KNOWN", [str(tmp_path / "ivc"), str(tmp_path / "none")])

    def call(as_json: bool = False) -> tuple[str, list[str]]:
        region_module.list_(as_json)
        told = capsys.readouterr()
        return told.out, told.err.splitlines()

    return call


def test_list_shows_what_can_be_told_apart(
    tmp_path: Path, listed: Callable[..., tuple[str, list[str]]]
) -> None:
    assert "no regions; make one" in listed()[0]
    for name in ("ivc-lab-x", "psm2_shm.1", "ivc-small", "ivc-foreign"):
        (tmp_path / name).write_bytes(bytes(1 << 20))
    os.truncate(tmp_path / "ivc-small", 100)
    (tmp_path / "ivc-foreign").write_bytes(b"x" * (1 << 20))
    assert listed() == (f"{tmp_path}/ivc-lab-x  1 MiB  unformatted  0 members\n", [])


def test_list_says_what_it_may_not_look_at(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    listed: Callable[..., tuple[str, list[str]]],
) -> None:
    for name in ("ivc", "a", "b"):
        (tmp_path / name).write_bytes(bytes(1 << 20))

    def refuse(name: str, *_: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        out, told = listed()
        as_json, told_too = listed(True)
    assert out == "" and json.loads(as_json) == [] and told == told_too
    assert len(told) == 2
    assert f"{tmp_path}/ivc: no permission" in told[0]
    assert "2 files without permission" in told[1]


def test_the_dead_are_called_silent(region: str, server: subprocess.Popen[str]) -> None:
    """That they were of this kernel nobody can know any more."""
    shown = run("show", region).stdout
    assert "this kernel, active" in shown
    assert json.loads(run("show", region, "--json").stdout)["members"][0]["process_exists"]
    server.kill()
    server.wait()
    shown = run("show", region).stdout
    assert ", silent" in shown and "this kernel" not in shown
    found = json.loads(run("show", region, "--json").stdout)
    assert (found["members"][0]["process_exists"], found["silent"]) == (None, [0])


def test_list_does_not_count_the_dead(
    server: subprocess.Popen[str], listed: Callable[..., tuple[str, list[str]]]
) -> None:
    assert listed()[0].endswith("ready  1 members\n")
    server.kill()
    server.wait()
    assert listed()[0].endswith("ready  0 members, 1 silent\n")


def test_a_process_of_another_namespace_is_not_looked_up(
    region: str, server: subprocess.Popen[str]
) -> None:
    """Its number says nothing here: only its heartbeat tells, as of another kernel's."""
    patch(region, window.read(region).geometry.members + 32, struct.pack("<Q", 1))
    patch(region, window.read(region).geometry.members + 24, struct.pack("<Q", 1))  # not its start
    assert not window.read(region).members[0].same_kernel
    fails(["reset", region], "in use by 1 members")


@pytest.mark.parametrize("size", ["1M", "2M", "17M", "64M", "100M"])
def test_layout_agrees_with_the_library(tmp_path: Path, size: str) -> None:
    if not SERVER.exists():
        pytest.skip(f"{SERVER} is not built")
    path = str(tmp_path / "w")
    assert run("create", path, "--size", size).returncode == 0
    with subprocess.Popen(
        [SERVER, "77"],
        env={**os.environ, "IVC_REGION": path},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        seen = window.read(path)
        process.terminate()
    assert seen.state == "ready"  # the header's tables lie where we compute them
    assert [(m.client_id, m.magic_id, m.pid, m.phase) for m in seen.members] == [
        (0, 77, process.pid, "active")
    ]
    assert seen.free_bytes is not None
    assert 0 < seen.free_bytes < seen.geometry.n_blocks * window.PAGE


def test_reset_refuses_the_living_and_clears_after_the_dead(
    region: str, server: subprocess.Popen[str]
) -> None:
    fails(["reset", region], "in use by 1 members", f"process {server.pid}")
    fails(["remove", region], "in use by 1 members")
    server.kill()
    server.wait()
    assert run("reset", region).returncode == 0
    with window.mapped(region) as memory:
        seen = window.parse(region, memory)
        assert seen.state == "unformatted"
        assert not any(memory[: seen.geometry.blocks])
    assert run("remove", region).returncode == 0
    assert not os.path.exists(region)


def test_reset_by_force(region: str, server: subprocess.Popen[str]) -> None:
    before = window.read(region)
    assert run("reset", "--force", region).returncode == 0
    # Whoever had used it notices within a tenth of a second and joins what is there now.
    after = window.read(region)
    assert after.state == "unformatted" or after.uuid != before.uuid
    for _ in range(50):
        if [m.pid for m in window.read(region).members] == [server.pid]:
            break
        time.sleep(0.1)
    assert window.read(region).uuid not in (before.uuid, None)
    assert server.poll() is None


def patch(path: str, offset: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


def test_damaged_header(region: str, server: subprocess.Popen[str]) -> None:
    server.kill()
    server.wait()
    patch(region, 12, struct.pack("<I", 12345))
    assert window.read(region).state == "damaged"
    assert "damaged" in run("show", region).stdout
    assert run("reset", region).returncode == 0
    assert window.read(region).state == "unformatted"


def of_another_kernel(path: str, lease_ms: int) -> int:
    """Turns the only member into one of another kernel; returns where its heartbeat lies."""
    member = window.read(path).geometry.members
    patch(path, member + 40, bytes(range(16)))
    patch(path, 96, struct.pack("<I", lease_ms))
    return member + 192


def test_a_beating_member_of_another_kernel_lives(
    region: str, server: subprocess.Popen[str]
) -> None:
    server.kill()
    server.wait()
    heartbeat = of_another_kernel(region, 10000)
    stop = threading.Event()

    def beat() -> None:
        count = 1000
        while not stop.wait(0.05):
            count += 1
            patch(region, heartbeat, struct.pack("<Q", count))

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        fails(["reset", region], "in use by 1 members")
    finally:
        stop.set()
        thread.join()


def test_a_process_that_does_not_exist_lives_while_it_beats(
    region: str, server: subprocess.Popen[str]
) -> None:
    """A copy of this guest has its boot id: what goes by another name than anybody here is not looked up."""
    at = window.read(region).geometry.members
    patch(region, at + 20, struct.pack("<I", 999999999))
    patch(region, at + 128, struct.pack("<Q", 1))
    member = window.read(region).members[0]
    assert (member.pid, member.same_kernel) == (999999999, False)
    fails(["reset", region], "in use by 1 members")


def test_a_silent_member_of_another_kernel_is_dead_after_the_lease(
    region: str, server: subprocess.Popen[str]
) -> None:
    server.kill()
    server.wait()
    of_another_kernel(region, 700)
    start = time.monotonic()
    assert run("reset", region).returncode == 0
    assert time.monotonic() - start >= 0.7


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "letter"
    path.write_bytes(b"dear " * (1 << 19))
    fails(["reset", str(path)], "not an ivc region", "--force")
    fails(["remove", str(path)], "not an ivc region")
    assert path.read_bytes() == b"dear " * (1 << 19)
    assert "not an ivc region" in run("show", str(path)).stdout
    assert run("reset", "--force", str(path)).returncode == 0
    assert window.read(str(path)).state == "unformatted"


def test_missing_and_small_files(tmp_path: Path) -> None:
    fails(["show", str(tmp_path / "none")], "no such file", "ivc region create")
    (tmp_path / "small").write_bytes(b"x")
    fails(["show", str(tmp_path / "small")], "too small")
    fails(["show", str(tmp_path)], "a directory")
    fails(["remove", str(tmp_path)], "not a file")
    fails(["remove", str(tmp_path / "none")], "no such file")
    fails(["show", "/dev/null"], "region /dev/null", "ivc_info")
