"""Debian's source packages: what is tested with them is fetched by apt, and built by its own means.

Nothing of it is part of this project. apt has a configuration of its own here: the system's lists
and settings stay as they are.
"""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Sequence
from pathlib import Path

from . import program
from .errors import IvcError, MissingError


def get(package: str, inside: str, work: Path) -> Path:
    """The folder INSIDE of the package's source, below the scratch folder WORK."""
    return _unpack(_download(work, package), work, inside)


def run(argv: Sequence[str], where: Path, what: str, timeout: float = 900) -> str:
    done = program.run(argv, cwd=where, timeout=timeout)
    if done.code is None:
        raise IvcError(f"{what} has not ended after {timeout:.0f} s")
    if done.code != 0:
        last = [line for line in done.said.splitlines() if line.strip()][-8:]
        errors = [line for line in last if line.startswith("E:")] or last[-1:]
        raise IvcError(f"{what} failed: {' '.join(errors)}", detail="\n".join(last))
    return done.said


def _source_line(package: str) -> str:
    """A deb-src line beside the deb line that this machine gets the package's binary from."""
    binary = "libfabric1" if package == "libfabric" else package
    said = run(["apt-cache", "madison", binary], Path("/"), f"apt-cache madison {binary}")
    found = re.search(r"\|\s*(\S+)\s*\|\s*(\S+)\s+(\S+?)/(\S+)\s+\S+ Packages", said)
    if not found:
        raise MissingError("apt knows no such package", hint="run: apt-get update")
    return f"deb-src{_signed_by()} {found[2]} {found[3]} {found[4]}\n"


def _signed_by() -> str:
    for name in ("debian", "ubuntu"):
        keys = Path(f"/usr/share/keyrings/{name}-archive-keyring.gpg")
        if keys.exists():
            return f" [signed-by={keys}]"
    return ""


def _download(work: Path, package: str) -> Path:
    """The package's original tarball, by an apt of its own: the system's lists stay as they are."""
    own = work / "apt"
    for name in ("lists/partial", "cache"):
        (own / name).mkdir(parents=True, exist_ok=True)
    (own / "sources.list").write_text(_source_line(package))
    options = {
        "Dir::Etc::sourcelist": own / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::lists": own / "lists",
        "Dir::Cache": own / "cache",
        "APT::Sandbox::User": "root",
    }
    apt = [
        "apt-get",
        "-q",
        *(w for key, value in options.items() for w in ("-o", f"{key}={value}")),
    ]
    run([*apt, "update"], work, "apt-get update for source packages", 300)
    into = work / package
    into.mkdir()
    run([*apt, "source", "--download-only", package], into, f"apt-get source {package}", 600)
    found = sorted(into.glob("*.orig.tar.*z*"))
    if not found:
        raise MissingError(f"apt-get source {package} brought no tarball")
    return found[0]


def _unpack(tarball: Path, work: Path, inside: str) -> Path:
    """That folder alone; plain files only, so nothing can point elsewhere."""
    into = work / "source"
    with tarfile.open(tarball) as tar:
        for member in tar:
            rest = member.name.partition("/")[2]
            if not member.isfile() or not rest.startswith(f"{inside}/") or ".." in rest:
                continue
            path = into / rest
            path.parent.mkdir(parents=True, exist_ok=True)
            file = tar.extractfile(member)
            assert file is not None
            path.write_bytes(file.read())
            path.chmod(0o755 if member.mode & 0o100 else 0o644)
            os.utime(path, (member.mtime, member.mtime))  # else make would make configure anew
    if not (into / inside / "configure.ac").is_file():
        raise MissingError(f"{tarball.name} holds no {inside}")
    return into / inside
