"""Part of `mpi`: `ivc profile` of a real job; the files that it reads are made up in host/tests/test_profile.py."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from .. import paths
from ..profile import figures, model
from .part import Run

#: A shell line: one rank kills itself after a while, in the middle of the program.
_KILLED = '[ "$OMPI_COMM_WORLD_RANK" = 1 ] && { sleep 2; kill -KILL $$; } & exec "$@"'


def profiled(run: Run, program: str, env: Mapping[str, str]) -> None:
    """A job that ends well, and one of which a rank is killed."""
    if not paths.mpi_profile().exists():
        run.skipped("ivc profile", f"{paths.mpi_profile().name} is not built")
        return
    with tempfile.TemporaryDirectory(prefix="ivc-test-") as folder:
        for size in ("10000", "1000000"):  # those of up to some thousand bytes go with their header, in one piece
            _whole(run, Path(folder) / f"{size}.json", [program, "--iterations", "2", "--max-size", size], env)
        words = ["sh", "-c", _KILLED, "sh", program, "--seconds", "20", "--max-size", "10000"]
        _killed(run, Path(folder) / "killed.json", words, env)


def _run(run: Run, output: Path, ranks: int, words: Sequence[str], env: Mapping[str, str]) -> tuple[int, str]:
    start = [sys.executable, "-m", "ivc_host", "profile", "--output", str(output), "--html", f"{output}.html"]
    done = run.program([*start, "--", "mpirun", "--oversubscribe", "-np", str(ranks), *words], env, 120)
    return done.returncode, done.stdout


def _whole(run: Run, output: Path, words: Sequence[str], env: Mapping[str, str]) -> None:
    code, said = _run(run, output, 4, words, env)
    if not run.check("ivc profile: the job ends as without it", code == 0 and "integrity: ok" in said, said):
        return
    found = model.load(output)
    carried = {(pair.sender, pair.receiver) for pair in found.between_ranks() if pair.messages}
    unequal = [pair for pair in found.pairs if pair.is_unequal()]
    run.check("ivc profile: every pair, and nothing missing", found.complete and len(carried) == 12, said)
    run.check("ivc profile: sent is received, to the byte", not unequal and not found.remarks, f"{unequal}")
    run.check("ivc profile: all by memory", figures.by_path(found)["memory"].bytes == 1.0, said)
    calls = {name: count for name, count, _, _ in figures.calls(found)}
    run.check("ivc profile: calls by name", calls.get("MPI_Barrier", 0) > 0 and bool(figures.in_mpi(found)), f"{calls}")


def _killed(run: Run, output: Path, words: Sequence[str], env: Mapping[str, str]) -> None:
    code, said = _run(run, output, 3, words, env)
    if not run.check("ivc profile: a killed rank is the job's exit status", code not in (0, 124) and output.exists(), said):
        return
    found = model.load(output)
    rank = next((one for one in found.processes if one.rank == 1), None)
    kept = figures.sent_by_rank(found)[1] > 0
    good = not found.complete and found.exit_status == code and rank is not None and not rank.complete
    run.check("ivc profile: a killed rank is told, and what it had counted is kept", good and kept, f"{found.remarks}\n{said}")
