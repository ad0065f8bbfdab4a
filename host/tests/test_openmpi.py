"""What the C library is told on processors whose string instruction is slow, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest
from ivc_host import openmpi

_ZEN4 = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\n"
_ZEN5 = _ZEN4.replace(": 25", ": 26")
_XEON = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\n"
_OLD, _NEW, _MUSL = ("glibc", "2.36"), ("glibc", "2.40"), ("", "")


@pytest.mark.parametrize(
    ("cpuinfo", "libc", "told"),
    [
        (_ZEN4, _OLD, True),
        (_ZEN4, _NEW, False),
        (_ZEN4, _MUSL, False),
        (_ZEN5, _OLD, False),
        (_XEON, _OLD, False),
        ("", _OLD, False),
    ],
)
def test_copying(
    cpuinfo: str, libc: tuple[str, str], told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    file = tmp_path / "cpuinfo"
    file.write_text(cpuinfo)
    assert ("GLIBC_TUNABLES" in openmpi.copying(file, libc)) is told


def test_copying_without_cpuinfo(tmp_path: Path) -> None:
    assert openmpi.copying(tmp_path / "nowhere", _OLD) == {}


def test_copying_keeps_what_was_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(_ZEN4)
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=1")
    told = openmpi.copying(file, _OLD)["GLIBC_TUNABLES"].split(":")
    assert told[0] == "glibc.malloc.check=1" and "x86_rep_movsb_threshold" in told[1]
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.cpu.x86_rep_movsb_threshold=4096")
    assert openmpi.copying(file, _OLD) == {}
