"""Programs that are run to their end, or ended."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest

from ivc_host import program
from ivc_host.testing.part import Run

_TALKS = ["sh", "-c", "echo out; echo err >&2; exit 3"]


def test_what_it_says_is_kept() -> None:
    assert program.run(_TALKS) == program.Ended(3, "out\nerr\n", "")
    assert program.run(_TALKS, errors_apart=True) == program.Ended(3, "out\n", "err\n")


def test_its_environment_is_the_one_given(tmp_path: Path) -> None:
    words = ["/bin/sh", "-c", 'echo "$WHO" "$HOME"; pwd']
    assert program.run(words, {"WHO": "me"}, tmp_path).said == f"me \n{tmp_path}\n"


@pytest.mark.parametrize("deaf", [False, True])
def test_one_that_hangs_ends_with_all_that_it_has_started(deaf: bool) -> None:
    trap = "trap '' TERM; " if deaf else ""
    begin = time.monotonic()
    ended = program.run(["sh", "-c", f"{trap}echo before; sleep 60 & wait; wait"], timeout=0.3)
    assert ended == program.Ended(None, "before\n", "")
    assert time.monotonic() - begin < 12


def test_a_part_counts_a_hang_as_124() -> None:
    log = io.StringIO()
    done = Run(log).program(["sh", "-c", "echo before; exec sleep 60"], timeout=0.3)
    assert (done.returncode, done.stdout) == (124, "before\n\n(ended after 0 s)\n")
    assert "before" in log.getvalue()
