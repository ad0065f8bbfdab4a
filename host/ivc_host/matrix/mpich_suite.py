"""MPICH's own test suite (`test/mpi` of its source), built with an MPI's compiler wrapper.

The suite's lists (`testlist`) say which programs there are, on how many ranks, and how one passes; our
runner reads them as the suite's own `runtests` does. A folder is built when its tests are first
asked for; what the MPI lacks (MPICH's extensions, with another MPI) does not build and is said so.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .. import source_package
from ..errors import IvcError, MissingError
from ..lab.hypervisor import cache_lock
from .ground import Job
from .mpis import Mpi
from .wheels import Environment

_PACKAGE, _INSIDE = "mpich", "test/mpi"
#: No Fortran and no C++: the wheels have no wrappers for the one and no library for the other.
_CONFIGURE = ("--disable-fortran", "--disable-cxx", "--disable-shared", "--disable-maintainer-mode")
#: Open MPI's library has what MPI-3 removed and MPICH's tests use; its header tells it when asked.
_REMOVED = "CPPFLAGS=-DOMPI_OMIT_MPI1_COMPAT_DECLS=0"
#: Seconds for a test of which the list says nothing. The suite gives 180.
_LIMIT = 90
#: More memory is not there on every machine: GB, of all ranks of a test.
_MEMORY_GB = 2.0
_BUILT = ".built"


@dataclass(frozen=True)
class Test:
    """A line of a list."""

    folder: str
    program: str
    ranks: int
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    limit: float = _LIMIT
    #: How it passes, by the suite's name; empty: it says "No Errors", and ends well.
    result: str = ""
    #: The suite's own reason why it fails.
    xfail: str = ""
    memory_gb: float = 0.0
    #: What MPI itself says, with nothing of MPICH's own.
    standard: bool = True

    @property
    def name(self) -> str:
        words = [f"{key}={value}" for key, value in self.env]
        return " ".join([f"{self.folder}/{self.program}", str(self.ranks), *self.args, *words])


def parse(folder: str, text: str) -> list[Test]:
    """The tests of one list, without the folders that it names."""
    found = []
    for line in text.splitlines():
        program, *words = line.partition("#")[0].split() or [""]
        if not words or not words[0].isdecimal():
            continue
        pairs = [(key, value) for key, _, value in (word.partition("=") for word in words[1:])]
        said = dict(pairs)
        found.append(
            Test(
                folder,
                program,
                int(words[0]),
                tuple(value for key, value in pairs if key == "arg"),
                tuple(_setting(value) for key, value in pairs if key == "env"),
                float(said.get("timeLimit", _LIMIT)),
                said.get("resultTest", ""),
                said.get("xfail", ""),
                float(said.get("mem", 0)),
                said.get("strict", "").lower() != "false" and said.get("mpix", "").lower() != "true",
            )
        )
    return found


def _setting(word: str) -> tuple[str, str]:
    key, _, value = word.partition("=")
    return key, value


def folders(built: Path, under: str = "") -> list[str]:
    """The folders of tests that the suite's lists name, in their order."""
    found = []
    listed = built / under / "testlist"
    for line in listed.read_text().splitlines() if listed.is_file() else []:
        word = line.partition("#")[0].strip()
        inner = f"{under}/{word}" if under else word
        if word and (built / inner).is_dir():
            found += [inner, *folders(built, inner)]
    return found


def tests(built: Path, folder: str) -> list[Test]:
    listed = built / folder / "testlist"
    return parse(folder, listed.read_text()) if listed.is_file() else []


def why_not_run(test: Test, built: Path, mpi: Mpi) -> str:
    """Why this MPI is not asked; empty when it is."""
    if test.memory_gb > _MEMORY_GB:
        return f"takes {test.memory_gb:g} GB of memory"
    if not test.standard and mpi.abi != "mpich":
        return "an extension of MPICH's"
    if not (built / test.folder / test.program).is_file():
        return "does not build"
    return ""


def fault(test: Test, job: Job) -> str:
    """Why the test has failed; empty when it has passed."""
    if job.code is None:
        return f"took longer than {test.limit:g} s"
    lines = [line.strip() for line in job.said.splitlines() if line.strip()]
    good = [line.lower() == "no errors" for line in lines]
    if test.result in ("TestErrFatal", "TestStatus", "TestStatusNoErrors"):
        if job.code == 0:
            return "ended with status 0, and should not"
        return "" if test.result != "TestStatusNoErrors" or any(good) else "did not say No Errors"
    others = [line for line, right in zip(lines, good) if not right and line != "Test Passed"]
    if others:
        how = f"exit {job.code}: " if job.code else ""
        reason = Job(job.code, "\n".join(others), job.seconds).reason.partition(": ")[2]
        return how + (reason or others[0])[:160]
    if job.code:
        return f"exit {job.code}"
    return "" if any(good) else "did not say No Errors"


def find(mpi: Mpi, environment: Environment) -> Path:
    """The suite, configured for this MPI, in the cache."""
    with cache_lock("mpi") as base:
        name = f"mpich-suite-{environment.folder.name}"
        if not (base / name).is_dir():
            base.mkdir(exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".new-", dir=base) as scratch:
                source = source_package.get(_PACKAGE, _INSIDE, Path(scratch))
                _configure(source, mpi, environment)
                source.rename(base / name)
        return base / name


def _configure(source: Path, mpi: Mpi, environment: Environment) -> None:
    for tool in ("make", "gcc", "perl"):
        if shutil.which(tool) is None:
            raise MissingError(f"MPICH's tests cannot be built: there is no {tool}", hint="install it")
    wrapper = mpi.compiler(environment)
    words = [f"MPICC={wrapper}", "MPIEXEC=false"]  # we start them
    words += [] if mpi.abi == "mpich" else ["--enable-strictmpi", _REMOVED]
    source_package.run(["./configure", *_CONFIGURE, *words], source, "MPICH's tests: configure")


def build(built: Path, folder: str) -> None:
    """Make the programs of a folder, and what they are linked with."""
    with cache_lock("mpi"):
        for one in ("dtpools", "util", folder):
            mark = built / one / _BUILT
            if not mark.exists():
                _make(built / one, complete=one != folder)
                mark.touch()


def _make(where: Path, complete: bool) -> None:
    # Sub-folders are folders of their own.
    words = ["nice", "make", "-k", "-j2", *(() if complete else ("SUBDIRS=.",))]
    done = subprocess.run(words, cwd=where, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if complete and done.returncode != 0:
        raise IvcError(f"MPICH's tests: make failed in {where}", detail=done.stderr[-2000:])
    for one in where.glob("*.o"):
        one.unlink()


def chosen(built: Path, only: Sequence[str]) -> list[str]:
    """The folders to run; all when none is named."""
    return [folder for folder in folders(built) if not only or folder in only]
