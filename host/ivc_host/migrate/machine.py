"""The contract between a migration and what runs the machine: QEMU today.

`journey.py` owns the sequence and the way back; a mechanism knows how one thing is done with one
machine. Invariants:

* a machine is on one host at any time: until `resume` is called on the one that waits, the other
  one can be resumed, and nothing that a mechanism does by itself makes the waiting one run;
* each call either did what it says or raises MachineError with the hypervisor's own words, and has
  then left the machine as it was (`detach` says what it cannot take back);
* `migrate` may be left at any moment; `cancel` afterwards says whether the machine is still here.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from ..errors import IvcError


class MigrateError(IvcError):
    """A machine was not moved, attached or detached; it is where the text says."""


class MachineError(IvcError):
    """A hypervisor did not do what it was asked; the text has its reason."""


class GoneError(MachineError):
    """The machine, or the connection to its hypervisor, has ended."""


class SilentError(GoneError):
    """No answer: it may have ended, be stopped, or be out of reach; a command may yet be done."""


class State(enum.Enum):
    RUNNING = "running"
    PAUSED = "paused"
    WAITING = "waiting for a migration"
    MOVED = "left behind by a migration"
    OTHER = "neither running nor paused"


@dataclass(frozen=True)
class RegionDevice:
    """A region's device as a machine has it, with all that is needed to plug the same in again."""

    #: The region's file, as the hypervisor names it.
    path: str
    size: int
    #: The hypervisor's names for the device and its memory.
    device: str
    memory: str
    #: Where it is plugged in; None leaves it to the hypervisor.
    bus: str | None = None
    address: str | None = None


@dataclass(frozen=True)
class Moving:
    """How far a migration is. Times in seconds, None where the hypervisor does not say."""

    done: bool = False
    transferred: int = 0
    remaining: int = 0
    total: int = 0
    #: Bytes per second.
    rate: float = 0.0
    #: How long the machine would stand still if it were stopped now.
    expected_downtime: float | None = None
    downtime: float | None = None
    total_time: float | None = None
    #: How often its whole memory was gone through.
    passes: int = 0


class Machine(Protocol):
    """A virtual machine on one host, or the place that waits for one."""

    #: As the hypervisor calls it: usually the guest's host name.
    name: str
    #: The host that it is on.
    host: str
    #: The same for whoever means this machine on this host, by whatever name.
    key: str
    #: Lower case, with hyphens; None when the hypervisor gave it none.
    uuid: str | None

    async def state(self) -> State: ...

    async def region(self) -> RegionDevice | None:
        """The region's device; None when the machine has none."""

    async def blockers(self) -> list[str]:
        """Why the hypervisor would refuse to migrate it, apart from the region's device."""

    async def prepare(self, device: RegionDevice) -> None:
        """Make the region's memory ready, so that `attach` has little left to do."""

    async def attach(self, device: RegionDevice) -> None:
        """Plug the region in; `prepare` may have come before."""

    async def detach(self, device: RegionDevice, timeout: float) -> None:
        """Ask the guest to let go of the device, and take it away with its memory."""

    def migrate(self, target: Any) -> AsyncGenerator[Moving, None]:
        """Move to TARGET, a waiting machine of the same mechanism; the last yielded is `done`.

        Afterwards the machine stands still on both sides, whole in TARGET.
        """

    async def cancel(self) -> None:
        """End a migration under way, so that the machine runs here again."""

    async def resume(self) -> None:
        """Let it run here."""

    async def end(self) -> None:
        """End what is left of it here: after it has moved, or when it waits in vain."""

    async def close(self) -> None:
        """Let go of the hypervisor; the machine stays as it is."""


class Mechanism(Protocol):
    """A hypervisor on one host."""

    async def names(self) -> list[str]:
        """The machines that it knows to be there, as far as it can tell without asking them."""

    async def find(self, name: str) -> Machine | None:
        """The machine of that name, if it is there, in whatever state."""

    async def expect(self, name: str, say: Callable[[str], None]) -> Machine:
        """Make a place that waits for that machine. Nothing is left of it when this raises."""
