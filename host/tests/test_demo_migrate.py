"""`ivc demo migrate`: its phases, and what it takes for shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from ivc_host import demo_migrate
from ivc_host.bench import trace_report
from ivc_host.bench.trace import Clock, Point
from ivc_host.demo_migrate import DemoError, Plan, Shown
from ivc_host.moves import Move

_MOVES = (10.0, 20.0)


def _shown(levels: tuple[float, float, float], **others: str) -> Shown:
    """Three phases of ten seconds, a move of a second between two."""
    plan = Plan(2048, 10.0, 0.0, 1, Path("in"), **others)
    moves = [
        Move("g2", to, at, at + 1, [], {}) for at, to in zip(_MOVES, plan.hosts(), strict=True)
    ]
    points = [
        Point(float(at), levels[(at > _MOVES[0]) + (at > _MOVES[1])], 2048) for at in range(31)
    ]
    return Shown(plan, "guests", Clock(0, 0), points, moves, {"memory": 1, "network": 1})


def test_together_begins_in_memory() -> None:
    shown = _shown((10, 30, 11))
    assert list(shown.medians().items()) == [
        ("memory before", 10), ("network", 30), ("memory after", 11),
    ]  # fmt: skip
    assert shown.plan.hosts() == ("h2", "h1")
    demo_migrate._judge(shown)


def test_apart_begins_on_the_network() -> None:
    shown = _shown((30, 10, 31), start="apart")
    assert list(shown.medians()) == ["network before", "memory", "network after"]
    assert shown.plan.hosts() == ("h1", "h2")
    demo_migrate._judge(shown)
    with pytest.raises(DemoError):
        demo_migrate._judge(_shown((10, 30, 11), start="apart"))


@pytest.mark.parametrize("levels", [(10, 12, 10), (10, 30, 13), (13, 30, 10)])
def test_what_was_not_shown(levels: tuple[float, float, float]) -> None:
    with pytest.raises(DemoError):
        demo_migrate._judge(_shown(levels))


def test_bandwidth_is_of_a_window() -> None:
    plan = _shown((10, 30, 10), test="bandwidth").plan
    assert plan.window == 64
    assert plan.figure(64.0) == pytest.approx(2048)


@pytest.mark.parametrize("axis", demo_migrate.AXES)
@pytest.mark.parametrize("test", demo_migrate.WINDOWS)
def test_picture(tmp_path: Path, axis: str, test: str) -> None:
    shown = _shown((10, 30, 10), test=test, axis=axis)
    assert trace_report._phases(shown).row_count == 3
    picture = tmp_path / "moves.png"
    trace_report.draw(shown, picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
