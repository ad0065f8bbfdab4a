"""Where fabtests comes from: Debian's source packages, built once into the cache.

Nothing of it is part of this project. The version that belongs to the installed libfabric lies in
the source package `libfabric`; where the mirror at hand lacks that, the source package `mpich`
brings an older copy of the same tests, and whoever reads the result is told which it was.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .. import source_package
from ..errors import IvcError, MissingError, UsageError
from ..lab.hypervisor import cache_dir

Tell = Callable[[str], None]

#: The folder of fabtests inside the unpacked source of each package, in order of preference.
_PACKAGES = {"libfabric": "fabtests", "mpich": "modules/libfabric/fabtests"}
_NEEDED = ("apt-get", "autoreconf", "libtoolize", "make", "gcc", "pkg-config")


@dataclass(frozen=True)
class Fabtests:
    """A fabtests that is ready to run."""

    folder: Path
    version: str
    #: Where it came from, in words.
    origin: str

    @property
    def script(self) -> Path:
        return self.folder / "runfabtests.sh"


def libfabric_version() -> str:
    """The version of the libfabric whose headers are installed."""
    done = subprocess.run(
        ["pkg-config", "--modversion", "libfabric"], capture_output=True, text=True
    )
    if done.returncode != 0:
        raise MissingError("libfabric's headers are missing", hint="install libfabric-dev")
    return done.stdout.strip()


def find(tell: Tell = lambda text: None) -> Fabtests:
    """The fabtests to use: IVC_FABTESTS names a folder of programs, else the cache's, else new."""
    named = os.environ.get("IVC_FABTESTS")
    if named:
        return _named(Path(named))
    return _cached() or _make(tell)


def _named(folder: Path) -> Fabtests:
    if not (folder / "runfabtests.sh").is_file() or not (folder / "fi_rdm_pingpong").is_file():
        raise UsageError(
            f"IVC_FABTESTS={folder}: no fabtests in it",
            hint="name the folder that `make install` has put runfabtests.sh and its programs in",
        )
    origin = folder.parent / "origin"
    version, _, words = origin.read_text().partition(" ") if origin.is_file() else ("", "", "")
    return Fabtests(folder, version or "(unknown version)", words.strip() or f"{folder}")


def _cached() -> Fabtests | None:
    """A copy built earlier, the matching version first; an older one only if that is all."""
    found = []
    for place in cache_dir().glob("fabtests-*/origin"):
        version, _, words = place.read_text().partition(" ")
        found.append(Fabtests(place.parent / "bin", version, words.strip()))
    wanted = libfabric_version()
    found.sort(key=lambda one: (one.version == wanted, _number(one.version)))
    return found[-1] if found else None


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(word) for word in re.findall(r"\d+", version))


def _make(tell: Tell) -> Fabtests:
    for name in _NEEDED:
        if shutil.which(name) is None:
            raise MissingError(
                f"fabtests cannot be built: there is no {name}",
                hint="install it (./run setup --for test), or name a ready one by IVC_FABTESTS",
            )
    cache_dir().mkdir(parents=True, exist_ok=True)
    refusals = []
    with tempfile.TemporaryDirectory(prefix="fabtests-", dir=cache_dir()) as scratch:
        work = Path(scratch)
        for package, inside in _PACKAGES.items():
            tell(f"fetching the source package {package}")
            try:
                source = source_package.get(package, inside, work)
            except IvcError as error:
                refusals.append(f"{package}: {error.message}")
                continue
            return _build(source, work, f"Debian's source package {package}", tell)
    raise MissingError(
        f"no source of fabtests could be had ({'; '.join(refusals)})",
        hint="build it by hand and name its folder of programs by IVC_FABTESTS",
    )


def _version(source: Path) -> str:
    found = re.search(r"AC_INIT\(\[fabtests\], \[([^\]]+)\]", (source / "configure.ac").read_text())
    if not found:
        raise IvcError(f"{source / 'configure.ac'} names no version")
    return found[1]


def _build(source: Path, work: Path, origin: str, tell: Tell) -> Fabtests:
    """Built in scratch and moved to its place as a whole: a copy in the cache is a good one."""
    version = _version(source)
    final = cache_dir() / f"fabtests-{version}"
    tell(f"building fabtests {version} in {final} (once)")
    ready = work / "ready"
    if not (source / "configure").exists():
        source_package.run(["autoreconf", "-if"], source, "fabtests: autoreconf")
    source_package.run(["./configure", f"--prefix={ready}"], source, "fabtests: configure")
    source_package.run(["nice", "make", "-j2"], source, "fabtests: make")
    source_package.run(["make", "install"], source, "fabtests: make install")
    (ready / "origin").write_text(f"{version} {origin}\n")
    shutil.rmtree(final, ignore_errors=True)
    ready.rename(final)
    return Fabtests(final / "bin", version, origin)
