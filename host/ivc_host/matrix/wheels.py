"""The MPIs under test as people install them: a Python environment for each, kept in the cache.

`CACHE/mpi/NAME-VERSION` is such an environment; it is complete when it is there under that name.
What a requirement such as "mpich" (the newest) meant when it was first asked for is noted beside
it, so that a second run needs no network and tests the same thing. pip knows where packages come
from: the user's own configuration of it counts.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from ..errors import IvcError, MissingError
from ..lab.hypervisor import cache_dir, cache_lock

#: The bindings, from a wheel, and the suite that belongs to them, from the source distribution.
MPI4PY = "4.1.2"
#: Seconds before pip is tried again.
_PAUSES = (5, 30)


class WheelError(IvcError):
    """An environment could not be made."""


@dataclass(frozen=True)
class Environment:
    folder: Path
    version: str

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def lib(self) -> Path:
        return self.folder / "lib"


def base() -> Path:
    return cache_dir() / "mpi"


def _why(said: list[str]) -> str:
    """pip's reason in few words."""
    if any("(from versions: none)" in line for line in said):
        return "the package index did not answer, or has none for this machine"
    errors = [line.removeprefix("ERROR:").strip() for line in said if line.startswith("ERROR:")]
    return errors[-1] if errors else "no reason given"


def _pip(words: list[str], what: str) -> None:
    """Run pip; again after a while when it fails, because indexes and networks have bad moments."""
    argv = [sys.executable, "-m", "pip", *words, "-q", "--disable-pip-version-check"]
    for pause in (*_PAUSES, None):
        done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode == 0:
            return
        said = done.stderr.strip().splitlines()
        why = _why(said)
        if pause is None or "No matching distribution" in why:  # waiting brings no version
            break
        time.sleep(pause)
    raise WheelError(
        f"pip could not get {what}: {why}",
        hint=f"try `{' '.join(argv[:3])} download mpi4py`",
        detail="\n".join(said[-6:]),
    )


def _version(python: Path, package: str) -> str:
    ask = f"import importlib.metadata as m; print(m.version({package!r}))"
    done = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _debian_version() -> str:
    """The version of the system's own Open MPI."""
    if shutil.which("mpirun", path="/usr/bin") is None:
        raise MissingError("the system's Open MPI is missing", hint="./run setup --for lab")
    done = subprocess.run(["/usr/bin/mpirun", "--version"], capture_output=True, text=True)
    found = re.search(r"Open MPI\) (\S+)", done.stdout)
    if not found or not found[1].startswith("4.1."):
        raise MissingError("the system's mpirun is not that of Open MPI 4.1")
    return found[1]


def _pointer(requirement: str) -> Path:
    return base() / ("." + re.sub(r"[^A-Za-z0-9.]+", "_", requirement))


def _make(name: str, requirement: str | None, new: Path) -> str:
    """Fill the folder NEW; returns the version of what is in it."""
    argv = [sys.executable, "-m", "venv", "--without-pip", str(new)]
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode != 0:
        raise WheelError(f"cannot make the Python environment {new}", detail=done.stderr)
    wanted = [requirement] if requirement else []
    python = new / "bin" / "python"
    _pip(["--python", str(python), "install", *wanted, f"mpi4py=={MPI4PY}"], requirement or name)
    return _version(python, name) if requirement else _debian_version()


#: What could not be had in this process: everybody else who asks is told at once.
_failed: dict[str, IvcError] = {}


def environment(name: str, requirement: str | None) -> Environment:
    """The environment with that package; made when it is not there. None: the system's MPI."""
    key = requirement or name
    if key in _failed:
        raise _failed[key]
    try:
        return _environment(name, requirement)
    except IvcError as error:
        _failed[key] = error
        raise


def _environment(name: str, requirement: str | None) -> Environment:
    key = requirement or name
    with cache_lock("mpi") as folder:
        folder.mkdir(exist_ok=True)
        pointer = _pointer(key)
        if pointer.is_file() and (folder / pointer.read_text()).is_dir():
            known = pointer.read_text()
            return Environment(folder / known, known.removeprefix(f"{name}-"))
        new = folder / f".new-{os.getpid()}"
        try:
            version = _make(name, requirement, new)
            target = folder / f"{name}-{version}"
            if not target.exists():
                new.rename(target)
            pointer.write_text(target.name)
        finally:
            shutil.rmtree(new, ignore_errors=True)
    return Environment(target, version)


def suite() -> Path:
    """The folder `test` of mpi4py's source distribution."""
    with cache_lock("mpi") as folder:
        folder.mkdir(exist_ok=True)
        target = folder / f"mpi4py-{MPI4PY}"
        if not target.is_dir():
            new = folder / f".new-{os.getpid()}"
            words = ["download", "--no-deps", "--no-binary", "mpi4py", "-d", str(new)]
            try:
                _pip([*words, f"mpi4py=={MPI4PY}"], "mpi4py's source distribution")
                archive = next(new.glob("mpi4py-*.tar.gz"))
                subprocess.run(["tar", "-xzf", archive, "-C", new, "--no-same-owner"], check=True)
                (new / target.name).rename(target)
            finally:
                shutil.rmtree(new, ignore_errors=True)
    return target / "test"
