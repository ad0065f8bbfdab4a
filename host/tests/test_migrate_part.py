"""The part `migrate`: that it can fail, and its places."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from ivc_host.testing import migrate
from ivc_host.testing.part import Run

_BOTH = (
    "ivc: rank 0 on host a, peer 1 on host b: memory: sent 3 packets 70 bytes, received 3 packets"
)
_GOOD = (
    f"integrity: ok: 4 ranks\n{_BOTH} 70 bytes, full 0; network: sent 5 bytes, received 5 bytes\n"
)


def _failures(code: int, said: str, moves: migrate.Moves) -> list[str]:
    run = Run(io.StringIO())
    migrate.judge(run, "job", code, said, moves)
    return run.tally.failures


def _moves(answered: int = 20, failures: int = 0) -> migrate.Moves:
    return migrate.Moves(30, answered, [0.01] * answered, ["guest-0: silent"] * failures)


def test_good_job_passes() -> None:
    assert _failures(0, _GOOD, _moves()) == []


@pytest.mark.parametrize(
    ("code", "said", "moves", "word"),
    [
        (1, _GOOD, _moves(), "status 0"),
        (124, _GOOD, _moves(), "status 0"),
        (0, _GOOD.replace("ok", "no"), _moves(), "every byte"),
        (0, _GOOD, _moves(failures=1), "every order"),
        (0, _GOOD, _moves(answered=2), "2 moves"),
        (0, _GOOD.replace("sent 5", "sent 0"), _moves(), "by memory and by network"),
        (0, _GOOD.replace("packets 70", "packets 0"), _moves(), "by memory and by network"),
    ],
)
def test_bad_job_fails(code: int, said: str, moves: migrate.Moves, word: str) -> None:
    found = _failures(code, said, moves)
    assert len(found) == 1
    assert word in found[0]


def test_place_is_taken_down() -> None:
    with migrate.place(2) as where:
        kept = [*where.hosts, where.folder]
        assert [Path(guest.link).resolve() for guest in where.guests] == [where.hosts[0]] * 2
        assert where.wrapper().stat().st_mode & 0o111
    assert not any(path.exists() for path in kept)
