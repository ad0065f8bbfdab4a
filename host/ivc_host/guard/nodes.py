"""What a scheduler of jobs should know: which of its nodes are to be drained, and which may be resumed.

A node is a host or a machine, by its name. Of those that are neither to leave nor well, nothing is
said: their scheduler leaves them as they are. The lines are the same for a command that the guard runs
before it moves anything, and for a health check that asks by HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..errors import IvcError
from ..health.contract import Level
from ..hypervisor.host import Host
from ..hypervisor.reach import Reach
from .plan import HostView, MachineView

#: A node's name, and why it is to be drained; None: it is well.
Nodes = Mapping[str, str | None]


class NodesError(IvcError):
    """The scheduler was not told."""


def of(hosts: Sequence[HostView], machines: Sequence[MachineView]) -> dict[str, str | None]:
    """All that is known of nodes. A machine seen on two hosts is drained when one of them is."""
    found: dict[str, str | None] = {}
    names = [(host.name, host) for host in hosts]
    by_name = dict(names)
    names += [(one.name, by_name[one.host]) for one in machines if one.host in by_name]
    for name, host in names:
        if (why := _why(host)) is not None:
            found[name] = why
        elif host.level is Level.OK:
            found.setdefault(name, None)
    return found


def _why(host: HostView) -> str | None:
    if host.evacuate:
        return f"{host.name} is to be emptied"
    return f"{host.name} fails: {host.why}" if host.level is Level.FAILING else None


def text(nodes: Nodes) -> str:
    """A line for each."""
    return "".join(
        f"resume {name}\n" if why is None else f"drain {name} {_plain(why)}\n"
        for name, why in sorted(nodes.items())
    )


def _plain(why: str) -> str:
    """One line of plain text: it goes through a shell and into a scheduler's state."""
    kept = "".join(c if c.isascii() and c.isprintable() and c not in "\"'`$\\" else " " for c in why)
    return " ".join(kept.split())[:200]


class Command:
    """What is run here at each step with these lines on its input: it knows what is new to it, also
    after others have changed a node."""

    def __init__(self, words: Sequence[str], timeout: float) -> None:
        self._words = words
        self._timeout = timeout

    async def tell(self, nodes: Nodes) -> None:
        here = Reach(Host("here", "processes", None))
        done = await here.run(self._words, self._timeout, given=text(nodes))
        if done.code != 0:
            raise NodesError(
                f"the scheduler was not told which nodes to drain: {self._words[0]}: {done.last_line()}"
            )
