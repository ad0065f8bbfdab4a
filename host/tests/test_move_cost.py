"""`ivc bench migrate`: what LAMMPS prints, and what a move is said to have cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from ivc_host.bench import cli, move_cost, move_cost_report
from ivc_host.bench.move_cost import Costs, Plan, Result, Trip
from ivc_host.bench.programs import BenchError
from ivc_host.bench.wire import Net
from ivc_host.errors import UsageError

_SAID = """\
Per MPI rank memory allocation (min/avg/max) = 3.1 | 3.1 | 3.1 Mbytes
Step CPU TotEng
       0            0   -2.2744931
       1     0.105e0   -2.27449
       2        0.215   -2.2746
Loop time of 0.215 on 2 procs for 2 steps with 256 atoms
""".replace("\n", " \n")  # as LAMMPS prints it


def _plan(**others: object) -> Plan:
    values = {"sides": ["ivc"], "nets": [Net("own", 0)], "steps": 10, "cells": 4, "guests": 2, "rounds": 1, "seed": 1}
    return Plan(**{**values, **others})  # type: ignore[arg-type]


def _ends(*times: float) -> list[float]:
    ends = [0.0]
    for one in times:
        ends.append(ends[-1] + one)
    return ends


def _costs() -> Costs:
    """Steps of 0.1 s; the move takes the time of two of them, in the third to sixth step."""
    still = Result("ivc", None, _ends(*[0.1] * 10), ["e"])
    moved = Result("ivc", Net("own", 0), _ends(0.1, 0.1, 0.1, 0.25, 0.15, *[0.1] * 5), ["e"], Trip(2, 0.25, 0.65, 0.04, 5_000_000))
    return Costs(_plan(), "guests", [still, moved])


def test_output_is_read() -> None:
    ends, energies = move_cost.parse(_SAID)
    assert ends == [0.0, 0.105, 0.215]
    assert energies == ["-2.2744931", "-2.27449", "-2.2746"]
    left_out = "\n".join(line for line in _SAID.splitlines() if "0.105e0" not in line)
    with pytest.raises(BenchError):
        move_cost.parse(left_out)


def test_cost_of_a_move() -> None:
    (cost,) = _costs().costs()
    assert cost.seconds == pytest.approx(0.2)
    assert cost.percent == pytest.approx(20)
    assert (cost.touched, cost.touched_still) == (2, 0)
    assert cost.longest == pytest.approx(0.25)
    assert cost.usual == pytest.approx(0.1)
    assert cost.took == pytest.approx(0.4)
    assert (cost.down, cost.bytes) == (0.04, 5_000_000)


def test_other_energies_are_an_error() -> None:
    costs = _costs()
    costs.check()
    costs.results.append(Result("ivc", Net("own", 0), [0.0, 1.0], ["f"]))
    with pytest.raises(BenchError):
        costs.check()


def test_table_and_picture(tmp_path: Path) -> None:
    costs = _costs()
    table = move_cost_report.table(costs)
    assert (table.row_count, len(table.columns)) == (10, 2)
    assert "same energies" in move_cost_report.legend(costs)
    picture = tmp_path / "cost.png"
    move_cost_report.draw(picture, costs, "here")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_rates() -> None:
    assert cli._rates("0,1000") == [0, 1000]
    named = [str(Net("own", rate)) for rate in (0, 100, 2500)]
    assert named == ["own, no limit", "own, 100 Mbit/s", "own, 2.5 Gbit/s"]
    for wrong in ("", "fast", "-1", "1,2,3,4", "1.5"):
        with pytest.raises(UsageError):
            cli._rates(wrong)


def test_a_network_in_common_needs_a_rate() -> None:
    assert cli._nets("own,mpi", "0,1000") == [Net("own", 0), Net("own", 1000), Net("mpi", 1000)]
    for names, rates in (("mpi", "0"), ("own,mpi", "0"), ("other", "1000")):
        with pytest.raises(UsageError):
            cli._nets(names, rates)


def test_input_has_what_was_asked_for(tmp_path: Path) -> None:
    text = _plan(steps=33, cells=7).write_input(tmp_path).read_text()
    assert "run 33\n" in text and "block 0 7 0 7 0 7\n" in text
