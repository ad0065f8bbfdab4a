"""What Open MPI is told beside its own parameters: where plug-ins are, how the C library is to copy, and which variables
its ranks are to see on other nodes."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path

from . import paths
from .errors import MissingError

#: The command whose answer `component_path` reads; it may run in a guest.
ASK_FOLDER = ["ompi_info", "--path", "pkglibdir", "--parsable"]
#: The same for `list_of_user`.
ASK_LIST = ["ompi_info", "--param", "mca", "base", "--level", "9", "--parsable"]

_LIST = "mca_base_env_list"

#: glibc's memcpy() copies by the string instruction from so many bytes on: never.
_NO_STRINGS = "glibc.cpu.x86_rep_movsb_threshold=1073741824"
_MENDED = (2, 40)


def component_path(parsable: str, ours: Path | None = None) -> str:
    """Our folder (the build's, unless OURS is another), then Open MPI's own: it has none else."""
    found = re.search(r"^path:pkglibdir:(.+)$", parsable, re.M)
    if not found:
        raise MissingError("ompi_info names no plug-in folder", hint="is this Open MPI 4.1?")
    return f"{ours or paths.plugin()}:{found[1]}"


def _is_zen3_or_4(cpuinfo: str) -> bool:
    vendor = re.search(r"^vendor_id\s*:\s*(\S+)", cpuinfo, re.M)
    family = re.search(r"^cpu family\s*:\s*(\d+)", cpuinfo, re.M)
    return bool(vendor and family) and (vendor[1], family[1]) == ("AuthenticAMD", "25")


def copying(cpuinfo: Path = Path("/proc/cpuinfo"), libc: tuple[str, str] | None = None) -> dict[str, str]:
    """What lets memcpy() copy well out of memory that another processor wrote; {}: nothing need be said.

    Open MPI copies out of our memory by memcpy(). On AMD's processors of family 25 (Zen 3, Zen 4)
    glibc before 2.40 copies by the string instruction, which is slow there: up to twenty times when
    source and destination lie badly (glibc bug 30994), and lines that it has read take more than
    twice as long when they are written again (docs/performance.md). What the user has told glibc is kept.
    """
    name, version = libc or platform.libc_ver()
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    before = os.environ.get("GLIBC_TUNABLES", "")
    if name != "glibc" or numbers >= _MENDED or "x86_rep_movsb_threshold" in before:
        return {}
    if not cpuinfo.exists() or not _is_zen3_or_4(cpuinfo.read_text()):
        return {}
    return {"GLIBC_TUNABLES": ":".join(filter(None, [before, _NO_STRINGS]))}


def list_of_user(parsable: str) -> str:
    """The list of variables that 4.1 would use, which may be from its files."""
    found = re.search(rf"^mca:mca:base:param:{_LIST}:value:(.*)$", parsable, re.M)
    return found[1].strip('"') if found else ""


def carried(entries: Sequence[str], *, is_4_1: bool, of_user: str = "") -> dict[str, str]:
    """The setting by which mpirun takes variables (NAME, or NAME=VALUE) to the ranks, joined with what is in it.

    Open MPI 4.1 ends a job that has both `mca_base_env_list` and `mpirun -x NAME`. Its other list, which
    is made for `-x` in its files, goes with `-x`, and not with the first one, which a user may have
    (OF_USER, by `list_of_user`). 5.0 knows the first one only, so where both may be meant it is that.
    """
    setting, before = _LIST, os.environ.get(f"OMPI_MCA_{_LIST}", "")
    if is_4_1 and not (before := of_user):
        setting = f"{_LIST}_internal"
        before = os.environ.get(f"OMPI_MCA_{setting}", "")
    # One that is there already keeps its place; with a value it is that which counts.
    named = {entry.partition("=")[0]: entry for entry in before.split(";") if entry}
    for entry in entries:
        name, is_set, _ = entry.partition("=")
        if is_set or name not in named:
            named[name] = entry
    return {f"OMPI_MCA_{setting}": ";".join(named.values())}
