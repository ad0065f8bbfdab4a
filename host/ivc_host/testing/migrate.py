"""The part `migrate`: MPI jobs on this host whose ranks move between two regions.

A rank's guest is a name (IVC_VM) and a symbolic link to the file of the host on which it is
(IVC_REGION); a move is an order, the wait for all answers, and a change of the link, which is what
build/tests/migrate/mover does. So a job goes through many moves in seconds. What moves is asked
for at random moments; the job checks every byte that it gets.
"""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from .. import paths, stats
from ..errors import IvcError, MissingError
from ..matrix import mpis, programs
from ..matrix.mpis import Mpi
from . import mpi, profile
from .part import Run, SkipPart

_RANKS = 4
#: Rank r is in guest r modulo this.
_GUESTS = 3
#: Seconds that a job runs, and until it counts as hung after that.
_SECONDS = 12
_LIMIT = 120
#: Seconds until an order that is not answered is withdrawn.
_ANSWER = 20
_MOVES = 3
_SIZES = (64 << 20, 24 << 20)

_STATS = re.compile(r"memory: sent \d+ packets (\d+) bytes[^\n]*?; network: sent (\d+) bytes")


@dataclass(frozen=True)
class Way:
    """One MPI, on one host, every byte between ranks through us."""

    key: str
    mpi: Mpi
    words: list[str]
    env: dict[str, str]
    #: What of the ranks' memory is the region's, so that large messages are read in place: that
    #: of MPI_Alloc_mem, which they use then, or all large blocks of malloc().
    memory: Literal["", "mpi", "heap"] = ""
    #: Windows of all kinds that the plug-in's put, get and atomics serve here, instead of messages.
    windows: bool = False


def _one(key: str) -> Mpi:
    return mpis.named([key])[0]


def _open_mpi(key: str, selection: dict[str, str]) -> Way:
    env = {
        **mpi.environment(""),
        # One-sided operations by messages: the others want memory that all ranks share.
        "OMPI_MCA_osc": "^ucx,sm,rdma",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        **selection,
    }
    if "ofi" in selection.values():
        env |= {"FI_PROVIDER_PATH": str(paths.provider()), "FI_PROVIDER": "ivc"}
    words = ["/usr/bin/mpirun", "--oversubscribe", "--bind-to", "none", "-np"]
    return Way(key, _one(key), words, env)


def _hydra(key: str, program: str, settings: dict[str, str]) -> Way:
    made = _one(key)
    found = made.environment()
    provider = str(paths.provider())
    env = {"LD_LIBRARY_PATH": str(found.lib), "FI_PROVIDER": "ivc", "IVC_STATS": "1"}
    env |= {"FI_PROVIDER_PATH": f"{provider}:{found.lib}" if "impi" in key else provider}
    env |= settings
    if "impi" in key:
        env["I_MPI_ROOT"] = str(found.folder)
    return Way(key, made, [str(found.folder / "bin" / program), "-n"], env)


def _plugin() -> Way:
    return _open_mpi("openmpi-4.1-plugin", {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "ivc,self"})


def _plugin_lent() -> Way:
    return replace(_plugin(), memory="mpi")


def _plugin_heap() -> Way:
    return replace(_plugin(), memory="heap")


def _plugin_windows() -> Way:
    way = _plugin()
    return replace(way, env={**way.env, "OMPI_MCA_osc": "rdma"}, memory="mpi", windows=True)


def _mtl() -> Way:
    return _open_mpi("openmpi-4.1-mtl", mpi.OVER_LIBFABRIC["mtl/ofi"])


def _mpich() -> Way:
    # Ranks of one host are to be as strange to each other as those of two.
    settings = {"MPIR_CVAR_CH4_NETMOD": "ofi", "MPIR_CVAR_NOLOCAL": "1"}
    return _hydra("mpich", "mpiexec", settings)


def _intel() -> Way:
    return _hydra("impi", "mpiexec.hydra", {"I_MPI_FABRICS": "ofi"})


WAYS = (_plugin, _plugin_lent, _plugin_heap, _plugin_windows, _mtl, _mpich, _intel)


@dataclass
class Guest:
    name: str
    link: Path
    host: Path


@dataclass
class Place:
    """Two hosts and the guests on them."""

    folder: Path
    hosts: list[Path]
    guests: list[Guest] = field(default_factory=list)

    def wrapper(self) -> Path:
        """Starts a program as a rank in its guest."""
        path = self.folder / "rank.sh"
        path.write_text(
            "#!/bin/sh\n"
            "rank=${PMI_RANK:-${OMPI_COMM_WORLD_RANK:-$PMIX_RANK}}\n"
            f"export IVC_VM=guest-$((rank % {len(self.guests)}))\n"
            f"export IVC_REGION={shlex.quote(str(self.folder))}/$IVC_VM\n"
            'exec "$@"\n'
        )
        path.chmod(0o755)
        return path


@contextmanager
def place(guests: int) -> Iterator[Place]:
    """All guests on the first of two hosts."""
    with tempfile.TemporaryDirectory(prefix="ivc-test-") as scratch:
        made = Place(Path(scratch), [])
        try:
            for number, size in enumerate(_SIZES):
                host = Path(f"/dev/shm/ivc-test-{os.getpid()}-migrate-{number}")
                made.hosts.append(host)
                with host.open("wb") as file:
                    file.truncate(size)
            for number in range(guests):
                guest = Guest(f"guest-{number}", made.folder / f"guest-{number}", made.hosts[0])
                guest.link.symlink_to(guest.host)
                made.guests.append(guest)
            yield made
        finally:
            for host in made.hosts:
                host.unlink(missing_ok=True)


@dataclass
class Moves:
    done: int = 0
    #: Those in which a process had to answer.
    answered: int = 0
    seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def _mover() -> Path:
    return paths.build() / "tests" / "migrate" / "mover"


def move(guest: Guest, to: Path | None, moves: Moves) -> None:
    """Move a guest; TO None: its device goes, and comes back with the next move."""
    words = [str(_mover()), "--timeout", str(_ANSWER), str(guest.link), guest.name]
    done = subprocess.run(
        [*words, str(to) if to else "none"], capture_output=True, text=True, timeout=_ANSWER + 30
    )
    if done.returncode != 0:
        moves.failures.append(f"{guest.name}: {done.stdout.strip()} {done.stderr.strip()}")
        return
    told = json.loads(done.stdout)
    moves.done += 1
    if told["members"]:
        moves.answered += 1
        moves.seconds.append(told["seconds"])
    if to:
        guest.host = to


def _move_at_random(job: subprocess.Popen[str], where: Place, dice: random.Random) -> Moves:
    """Until the job has ended."""
    moves = Moves()
    end = time.monotonic() + _SECONDS + _LIMIT
    while job.poll() is None and time.monotonic() < end:
        time.sleep(dice.random() ** 2)
        guest = dice.choice(where.guests)
        away = dice.random() < 0.25
        move(guest, None if away else dice.choice(where.hosts), moves)
        if away:
            time.sleep(dice.random() / 4)
            move(guest, dice.choice(where.hosts), moves)
    return moves


def _end(job: subprocess.Popen[str]) -> None:
    """The launcher ends its ranks when it is asked to; whoever is left after that is killed."""
    if job.poll() is None:
        job.terminate()
        try:
            job.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)
    job.wait()


def run_job(
    words: Sequence[str], env: Mapping[str, str], where: Place, dice: random.Random, said: Path
) -> tuple[int, Moves]:
    """The job's exit status (124: it hung) and what was moved meanwhile; it writes into SAID."""
    with said.open("w") as file:
        job = subprocess.Popen(
            words,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            time.sleep(1)
            moves = _move_at_random(job, where, dice)
            return (124 if job.poll() is None else job.returncode), moves
        finally:
            _end(job)


def _bytes(said: str) -> tuple[int, int]:
    found = _STATS.findall(said)
    return sum(int(one) for one, _ in found), sum(int(one) for _, one in found)


def judge(run: Run, what: str, code: int, said: str, moves: Moves) -> None:
    """The job ended well, everybody answered, and both paths carried something."""
    good = code == 0 and re.search(r"^\w+: ok", said, re.M) is not None
    if not run.check(f"{what}: every byte right, status 0", good, f"{said}\n(exit {code})"):
        return
    run.check(f"{what}: every order answered", not moves.failures, "\n".join(moves.failures))
    run.check(f"{what}: {moves.answered} moves", moves.answered >= _MOVES, f"{moves}")
    by_memory, by_network = _bytes(said)
    run.check(f"{what}: by memory and by network", by_memory > 0 and by_network > 0,
              f"{by_memory} bytes by memory, {by_network} by network\n{said}")  # fmt: skip


def _options(way: Way) -> list[str]:
    if way.windows:
        kinds = ["create", "alloc_mem", "dynamic"]
        return ["--kinds", ",".join(kinds), "--seconds", str(_SECONDS / len(kinds))]
    options = ["--seconds", str(_SECONDS), "--progress", "5", "--compute", "0.5"]
    return [*options, *(["--alloc-mem"] if way.memory == "mpi" else [])]


def _job(run: Run, way: Way, seed: int) -> None:
    name = "windows" if way.windows else "integrity"
    program = programs.program(way.mpi, way.mpi.environment(), name)
    with place(_GUESTS) as where:
        words = [*way.words, str(_RANKS), str(where.wrapper())]
        preload = {"mpi": paths.mpi_alloc(), "heap": paths.heap()}
        words += ["env", f"LD_PRELOAD={preload[way.memory]}"] if way.memory else []
        words += [str(program), "--seed", str(seed), *_options(way)]
        env = {**way.env, "FI_TCP_IFACE": "lo", "IVC_STATS": "1"}
        env.pop("IVC_REGION", None)
        log = where.folder / "said"
        code, moves = run_job(words, env, where, random.Random(seed), log)
        said = log.read_text(errors="replace")
    run.log(f"$ {shlex.join(words)}\n{said}\n(exit {code})\n{moves}")
    run.log(
        f"{way.key}: seed {seed}, {moves.answered} moves, answers after "
        + ", ".join(f"p{part} {stats.percentile(moves.seconds or [0.0], part) * 1e3:.1f} ms" for part in (50, 99))
    )
    what = f"{way.mpi.label}, {_RANKS} ranks in {_GUESTS} guests"
    what += {"mpi": ", memory of the region", "heap": ", malloc() in the region"}.get(way.memory, "")
    what += ", windows" if way.windows else ""
    judge(run, what, code, said, moves)
    if way.memory and not way.windows:
        run.check(f"{what}: read in place", "read in place" in said, said)


def _profile_job(run: Run, way: Way, seed: int) -> None:
    """What is counted stays right across moves: packets that were sent once more are no messages."""
    program = programs.program(way.mpi, way.mpi.environment(), "integrity")
    with place(_GUESTS) as where:
        words = [*way.words, str(_RANKS), str(where.wrapper()), str(program), "--seed", str(seed), *_options(way)]
        written = where.folder / "profile"
        env = {**way.env, "FI_TCP_IFACE": "lo", "IVC_STATS": f"json:{written}"}
        env.pop("IVC_REGION", None)
        log = where.folder / "said"
        code, moves = run_job(words, env, where, random.Random(seed), log)
        said = log.read_text(errors="replace")
        found = profile.read(written)
    run.log(f"$ {shlex.join(words)}\n{said}\n(exit {code})\n{moves}")
    what = f"{way.mpi.label}, a profile across {moves.answered} moves"
    if not run.check(f"{what}: status 0", code == 0 and moves.answered >= _MOVES, f"{said}\n(exit {code})"):
        return
    differences = list(profile.differences(found))
    run.check(f"{what}: sent is received", len(found) == _RANKS and not differences, "\n".join(differences))
    by_path = profile.sent_by_path(found)
    run.check(f"{what}: by memory and by network", min(by_path.values()) > 0, f"{by_path}")
    both = sum({"memory", "network"} <= paths for one in found.values() for paths in one.paths.values())
    run.check(f"{what}: the paths in time", both > 0, f"{[one.paths for one in found.values()]}")


#: Those whose traffic is also counted, in a job of its own.
_PROFILED = (_plugin, _mpich)


def migrate(run: Run) -> None:
    mpi.require()
    if not _mover().exists():
        raise SkipPart(f"{_mover()} is not built (./run build)")
    seed = random.randrange(1, 1 << 30)
    for make in WAYS:
        try:
            way = make()
            if not way.mpi.built().exists():
                raise MissingError(f"{way.mpi.built().name} is not built (./run build)")
        except MissingError as error:
            run.skipped(make.__name__.removeprefix("_"), str(error))
            continue
        except IvcError as error:
            run.skipped(make.__name__.removeprefix("_"), f"this MPI cannot be had here: {error}")
            continue
        _job(run, way, seed)
        if make in _PROFILED:
            _profile_job(run, way, seed)
