"""Part of `mpi`: `ivc place --prove` with real launchers, whose hosts are names of this machine.

Each MPI must start every rank where the file that it was given says, for both placements.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ..errors import IvcError
from ..matrix import mpis
from ..place import prove
from ..profile import model
from .part import Run

_GUESTS = ("g1", "g2", "g3", "g4")
#: For each launcher the words by which it starts ranks "there".
_LAUNCHERS = {
    "openmpi-4.1-plugin": ("mpirun", ["--mca", "plm_rsh_agent", mpis.AS_HOST]),
    "openmpi-5.0": ("mpirun", ["--prtemca", "plm_ssh_agent", mpis.AS_HOST]),
    "mpich": ("mpiexec", ["-launcher", "ssh", "-launcher-exec", mpis.AS_HOST]),
    "impi": ("mpiexec.hydra", ["-bootstrap", "ssh", "-bootstrap-exec", mpis.AS_HOST]),
}
#: A rank says who it is and where.
_RANK = 'echo "${OMPI_COMM_WORLD_RANK:-$PMI_RANK} $(hostname)" >> "$0"'


def placed(run: Run) -> None:
    if os.geteuid() != 0:
        run.skipped("ivc place --prove", "names of this machine as hosts need root")
        return
    for key, (launcher, there) in _LAUNCHERS.items():
        one = mpis.named([key])[0]
        try:
            program = str(one.environment().folder / "bin" / launcher) if one.requirement else f"/usr/bin/{launcher}"
        except IvcError as error:
            run.skipped(f"ivc place --prove, {one.label}", f"this MPI cannot be had here: {error}")
            continue
        with tempfile.TemporaryDirectory(prefix="ivc-test-") as folder:
            _one(run, one.label, [program, *there], Path(folder))


def _one(run: Run, label: str, launcher: Sequence[str], folder: Path) -> None:
    """0 talks to 2, and 1 to 3: the proposed placement is another one."""
    pairs = [model.Pair(sender=i, receiver=(i + 2) % 4, sent={"network": model.Volume(messages=1, bytes=1000)}) for i in range(4)]
    processes = [model.Process(rank=rank, host=guest, pid=1) for rank, guest in enumerate(_GUESTS)]
    model.save(model.Profile(size=4, processes=processes, pairs=pairs), folder / "p.json")
    (folder / "hosts").write_text("g1 1 a\ng2 1 a\ng3 1 b\ng4 1 b\n")
    words = [sys.executable, "-m", "ivc_host", "place", str(folder / "p.json"), "--hosts", str(folder / "hosts"), "--json", "--prove"]
    done = run.program(
        [*words, "--", *launcher, "-n", "4", "sh", "-c", _RANK, str(folder / "log")],
        {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
        120,
    )
    if not run.check(f"ivc place --prove, {label}: all runs end", done.returncode == 0, done.stdout):
        return
    told = json.loads(done.stdout[done.stdout.index("{"):])
    wanted = {tuple(told[side]["guests"]) for side in ("present", "proposed")}
    found = _runs((folder / "log").read_text().splitlines())
    good = len(wanted) == 2 and set(found) == wanted and len(found) == 2 * (prove.LEAST_ROUNDS + 1)
    run.check(f"ivc place --prove, {label}: each rank is where it should be", good, f"{wanted}\n{found}\n{done.stdout}")


def _runs(lines: Sequence[str]) -> list[tuple[str, ...]]:
    """Of each run the host of each rank."""
    runs = [dict(line.split() for line in lines[at : at + 4]) for at in range(0, len(lines), 4)]
    return [tuple(one.get(str(rank), "") for rank in range(4)) for one in runs]
