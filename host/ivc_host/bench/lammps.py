"""Debian's LAMMPS as it is: run it on an input of its own, read its timing, compare its physics.

LAMMPS prints a table of the system's state (energy, pressure ...) as it goes and, at the end of
each run, where the time went. The transport must change the second and never the first.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

from ..errors import MissingError
from .places import MpiPath, Place
from .programs import BenchError, check

#: Where Debian's lammps-examples puts them; every other place a user names by path.
EXAMPLES = Path("/usr/share/lammps/examples")
DEFAULT_INPUT = EXAMPLES / "melt" / "in.melt"

_LOOP = re.compile(r"^Loop time of (\S+) on (\d+) procs for (\d+) steps with (\d+) atoms")
_COMM = re.compile(r"^Comm\s*\|\s*\S+\s*\|\s*(\S+)\s*\|")
#: The other way to print a state (thermo_style multi): a head, then lines of NAME = value.
_MULTI = re.compile(r"^-+ Step +(\d+) ")
_NAMED = re.compile(r"\w+ *= +([-+0-9.eE]+)")
_NUMBERS = re.compile(r"^\s*\d+(\s+[-+0-9.eE]+)+\s*$")


@dataclass(frozen=True)
class Result:
    """One execution; the sums over the runs within it."""

    loop_s: float
    comm_s: float
    steps: int
    atoms: int
    #: The printed state, line by line.
    thermo: tuple[tuple[str, ...], ...]

    @property
    def comm_percent(self) -> float:
        return 100 * self.comm_s / self.loop_s

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "comm_percent": self.comm_percent}


def parse(output: str) -> Result:
    """Read what LAMMPS has printed."""
    loop = comm = 0.0
    steps = atoms = 0
    thermo: list[tuple[str, ...]] = []
    in_table = in_multi = False
    for line in output.splitlines():
        if found := _LOOP.match(line):
            loop += float(found[1])
            steps += int(found[3])
            atoms = int(found[4])
            in_table = in_multi = False
        elif found := _COMM.match(line):
            comm += float(found[1])
        elif found := _MULTI.match(line):
            in_multi = True
            thermo.append((found[1],))
        elif in_multi and "=" in line:
            thermo[-1] += tuple(_NAMED.findall(line))
        elif line.split()[:1] == ["Step"]:
            in_table = True
        elif in_table and _NUMBERS.match(line):
            thermo.append(tuple(line.split()))
    if not loop or not thermo:
        raise BenchError("LAMMPS printed no timing", detail=output[-800:])
    return Result(loop, comm, steps, atoms, tuple(thermo))


def difference(one: Result, other: Result) -> float:
    """The largest relative difference between two runs' states; 0 when they read the same.

    Each number is seen against the largest of its column, since a pressure may well pass zero.
    """
    if [len(row) for row in one.thermo] != [len(row) for row in other.thermo]:
        return float("inf")
    scale: dict[tuple[int, int], float] = {}
    for result in (one, other):
        for row in result.thermo:
            for column, text in enumerate(row):
                key = (len(row), column)
                scale[key] = max(scale.get(key, 0.0), abs(float(text)))
    worst = 0.0
    for mine, theirs in zip(one.thermo, other.thermo):
        for column, (a, b) in enumerate(zip(mine, theirs)):
            if a != b:
                worst = max(worst, abs(float(a) - float(b)) / scale[len(mine), column])
    return worst


def require(source: Path) -> None:
    """Raise when LAMMPS or the input is not there."""
    if shutil.which("lmp") is None:
        raise MissingError("LAMMPS (lmp) is missing", hint="install it with: ./run setup")
    if not source.is_file():
        raise MissingError(
            f"the LAMMPS input {source} is missing",
            hint="Debian's package lammps-examples has some; or name one with --lammps-input",
        )


def command(source: Path) -> list[str]:
    """LAMMPS on its input, in the input's own folder, because it may read files beside it."""
    return [
        *("env", "-C", str(source.parent), "OMP_NUM_THREADS=1"),
        *("lmp", "-in", source.name, "-log", "none", "-nocite"),
    ]


def run(
    place: Place, path: MpiPath, source: Path, np: int, timeout: float = 240.0
) -> tuple[Result, subprocess.CompletedProcess[str]]:
    """Run LAMMPS on its input."""
    done = place.mpi(path, command(source), np, timeout)
    check(done, f"LAMMPS on {place.label} through {path.label}")
    return parse(done.stdout), done
