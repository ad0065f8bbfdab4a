"""How the lines of a test program are counted."""

from __future__ import annotations

import io
import subprocess

from ivc_host.testing.part import Run

_SAID = """first.c:1: noise
ok 1 - first
second.c:2: why it failed
not ok 2 - second
# no such device
skip 3 - third
fourth.c:4: later noise
ok 4 - fourth
1..4
"""


def _count(said: str, code: int) -> Run:
    run = Run(io.StringIO())
    run.count("name", subprocess.CompletedProcess(["name"], code, said, ""))
    return run


def test_every_line_counts() -> None:
    run = _count(_SAID, 1)
    assert run.tally.passed == 2
    assert run.tally.failures == ["name: second"]
    assert run.tally.skips == ["name: third: no such device"]


def test_evidence_is_of_the_failed_case() -> None:
    assert _count(_SAID, 1).evidence == ["second.c:2: why it failed", "not ok 2 - second"]


def test_silence_is_a_failure() -> None:
    assert _count("Segmentation fault\n", 139).tally.failures == ["name: ended with 139"]
