"""The `ivc` command as its users meet it: output, exit codes, one line per fault."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ivc_host import packages
from ivc_host.errors import UsageError
from ivc_host.lab import process
from ivc_host.lab.cli import parse_size

_PROJECT = Path(__file__).parents[2]


def ivc(*words: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ivc_host", *words],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "COLUMNS": "100", **settings},
        timeout=60,
    )


def test_help_names_the_groups() -> None:
    done = ivc("--help")
    assert done.returncode == 0
    assert "lab" in done.stdout


@pytest.mark.parametrize("command", ["up", "list", "console", "down"])
def test_each_lab_command_has_help(command: str) -> None:
    done = ivc("lab", command, "--help")
    assert done.returncode == 0
    assert "Usage: ivc lab" in done.stdout


def test_version() -> None:
    assert ivc("--version").stdout.startswith("ivc 0.")


def test_list_prints_json() -> None:
    done = ivc("lab", "list", "--json")
    assert done.returncode == 0, done.stderr
    assert isinstance(json.loads(done.stdout), list)


@pytest.mark.parametrize(
    "words",
    [
        ("lab", "ssh", "--name", "no-such-lab", "g1"),
        ("lab", "mpirun", "--name", "no-such-lab", "hostname"),
        ("lab", "down", "--name", "no-such-lab"),
        ("lab", "console", "--name", "no-such-lab", "g1"),
    ],
    ids=" ".join,
)
def test_a_lab_that_is_not_there_is_one_line(words: tuple[str, ...]) -> None:
    done = ivc(*words)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("ivc: there is no lab named no-such-lab")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ("lab", "mpirun"),
        ("lab", "up", "--region-size", "many"),
        ("lab", "up", "--name", "Not Good"),
        ("lab", "up", "--hypervisor", "vmware"),
        ("lab", "up", "--no-such-option"),
        ("save", "g1"),
        ("save", "g1", "not/a/whole/path"),
        ("save", "../g1", "/tmp/file"),
        ("nonsense",),
    ],
    ids=" ".join,
)
def test_nonsense_is_a_usage_error_without_a_traceback(words: tuple[str, ...]) -> None:
    done = ivc(*words)
    assert done.returncode == 2
    assert done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", ["--help", "--version", "lab --help", "test --list"])
def test_a_full_disk_is_one_line(words: str, unbuffered: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "ivc_host", *words.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    assert (done.returncode, done.stderr) == (1, "ivc: No space left on device\n")


def test_a_reader_that_has_gone_is_no_fault() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "ivc_host", "test", "--list"],
        stdout=writer,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("words", [["test", "unit"], ["fabtests", "--sets", "unit"]])
def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "file").touch()
    nowhere = {"IVC_BUILD": f"{tmp_path}/file", "IVC_CACHE": f"{tmp_path}/file/x", "IVC_FABTESTS": ""}
    done = ivc(*words, PATH="/usr/bin:/bin", **nowhere)
    assert done.returncode == 1
    assert done.stderr.startswith("ivc: ") and done.stderr.count("\n") == 1
    assert "Not a directory" in done.stderr


def test_completion_offers_the_commands() -> None:
    done = ivc("lab", _IVC_COMPLETE="complete_bash", COMP_WORDS="ivc lab mp", COMP_CWORD="2")
    assert done.stdout.split() == ["mpirun"]


@pytest.mark.parametrize(
    "text, size",
    [("64M", 64 << 20), ("1G", 1 << 30), ("512MiB", 512 << 20), ("4096", 4096), ("8 kB", 8192)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "M", "-1M", "1T", "1.5G", "64M64M", "8589934592G", "9" * 5000])
def test_what_is_not_a_size(text: str) -> None:
    with pytest.raises(UsageError):
        parse_size(text)


def test_the_package_table_is_whole() -> None:
    rows = [
        line.split()
        for line in (_PROJECT / "host/ivc_host/packages.txt").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert rows
    for row in rows:
        assert len(row) == 7, row
        assert row[0] in ("base", "build", "lab", "demo", "test"), row
    assert "user-mode-linux" in packages.needed("lab", "debian12")


@pytest.mark.parametrize(
    "system, code, says",
    [
        ("ID=fedora\nVERSION_ID=41\n", 1, "dnf install"),
        ('ID="opensuse-tumbleweed"\nID_LIKE="opensuse suse"\n', 1, "zypper install"),
        ("ID=arch\n", 1, "pacman -S"),
        ("ID=strange\n", 1, "user-mode-linux"),
    ],
    ids=["fedora", "opensuse", "arch", "unknown"],
)
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to show ./run another /etc/os-release")
def test_run_on_another_system_lists_what_is_missing(
    tmp_path: Path, system: str, code: int, says: str
) -> None:
    release = tmp_path / "os-release"
    release.write_text(system)
    line = 'mount --bind "$1" /etc/os-release && exec "$2" setup'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", line, "sh", str(release), str(_PROJECT / "run")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code
    assert says in done.stderr
    assert done.stdout == ""


def test_the_end_of_a_console_stops_at_a_panic(tmp_path: Path) -> None:
    log = tmp_path / "console.log"
    log.write_text("first\n\x1b[31mcause\r\nKernel panic - not syncing\n" + "trace\n" * 100)
    assert process.tail(log).splitlines() == [
        "first", "[31mcause", "Kernel panic - not syncing", "trace", "trace"
    ]
    assert process.tail(tmp_path / "nothing") == "(no output)"


def test_a_process_number_that_was_used_again_is_another_process() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        first = process.Process.of(child.pid)
        assert first.alive()
        assert not process.Process(first.pid, first.start_time + 1).alive()
    finally:
        child.kill()
        child.wait()
    assert not first.alive()
    with pytest.raises(ProcessLookupError):
        process.Process.of(first.pid)
