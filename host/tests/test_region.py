"""`ivc region` on real files, with a real member: the example server of the build directory."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ivc_host import paths, window

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


def test_create_refuses(region: str, tmp_path: Path) -> None:
    fails(["create", region], "exists already")
    fails(["create", str(tmp_path / "a"), "--size", "1000"], "at least 1 MiB", code=2)
    fails(["create", str(tmp_path / "a"), "--size", "many"], "is not a size", code=2)
    fails(["create", str(tmp_path / "a"), "--mode", "9"], "is not a mode", code=2)
    fails(["create", str(tmp_path / "a"), "--group", "no-such"], "no such group", code=2)
    fails(["create", str(tmp_path / "no" / "a")], "No such file")
    assert not (tmp_path / "a").exists()


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
    fails(["remove", str(tmp_path)], "not a file")
    fails(["show", "/dev/null"], "region /dev/null", "ivc_info")
