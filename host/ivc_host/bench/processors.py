"""Which two processors carry a benchmark, and how processes that exist already are put there."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from ..errors import UsageError


def _core(cpu: int) -> str:
    """What tells physical cores apart; hyperthreads of one core give the same text."""
    siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        return siblings.read_text().strip()
    except OSError:
        return str(cpu)


def choose(text: str | None = None) -> tuple[int, int]:
    """Two processors on different cores that this process may use; `text` names them ("2,3")."""
    allowed = sorted(os.sched_getaffinity(0))
    if text is not None:
        try:
            first, second = (int(word) for word in text.split(","))
        except ValueError:
            raise UsageError(f"{text!r} are not two processors", hint="write: --cpus 0,1") from None
        if first == second or not {first, second} <= set(allowed):
            raise UsageError(
                f"processors {text} cannot be used",
                hint=f"name two different ones of {','.join(map(str, allowed))}",
            )
        return first, second
    cores: dict[str, int] = {}
    for cpu in allowed:
        cores.setdefault(_core(cpu), cpu)
    chosen = list(cores.values())
    if len(chosen) < 2:
        raise UsageError(
            "a benchmark between two cores needs two of them, this process may use one",
            hint="see taskset(1), or the container's limits",
        )
    return chosen[0], chosen[1]


def _children() -> dict[int, list[int]]:
    """Every process of this machine by its parent."""
    found: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        try:
            stat = Path(f"/proc/{entry}/stat").read_text()
        except OSError:
            continue  # it ended meanwhile
        parent = int(stat[stat.rindex(")") + 2 :].split()[1])
        found.setdefault(parent, []).append(int(entry))
    return found


def pin_tree(pid: int, cpu: int) -> None:
    """Put a process, its threads and its descendants on one processor; later ones inherit it.

    A user-mode Linux guest is such a tree: its kernel, and a process per address space in it.
    """
    children = _children()
    tree = [pid]
    for one in tree:  # grows while it is walked
        tree += children.get(one, [])
        _pin_threads(one, {cpu})


def _pin_threads(pid: int, cpus: Iterable[int]) -> None:
    try:
        threads = [int(entry) for entry in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return
    for thread in threads:
        try:
            os.sched_setaffinity(thread, cpus)
        except ProcessLookupError:
            pass  # it ended meanwhile
