"""The contract between ivc and what runs virtual machines.

A `Hypervisor` is that of one host, a `Machine` one of its machines, or the place that waits for one.
Who has a sequence and the way back (`migrate/journey.py`) knows no hypervisor; a hypervisor knows how
one thing is done with one machine. Invariants:

* a machine is on one host at any time. Where `held` says that a moved machine stands still until
  `resume`, the source can be resumed until then, and nothing else makes the waiting one run;
* each call either did what it says or raises MachineError with the hypervisor's own words, and has
  then left the machine as it was (`detach` says what it cannot take back);
* a migration may be left at any moment; `cancel` afterwards says whether the machine is still here.

A new hypervisor is a class that fulfils `Hypervisor`, named by an entry point of the group
`ivc.hypervisors`; nothing of this project has to be changed for it.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from .faults import MachineError
from .host import Host
from .reach import Reach


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
    #: The hypervisor's names for the device and its memory; empty: it makes one.
    device: str = ""
    memory: str = ""
    #: Where it is plugged in; None leaves it to the hypervisor.
    bus: str | None = None
    address: str | None = None


@dataclass(frozen=True)
class MachineDescription:
    """What a machine needs of a host, and has."""

    memory: int
    vcpus: int
    #: Features of its processors, in the words of /proc/cpuinfo where the hypervisor's are others only
    #: by case or hyphens; empty: the hypervisor does not tell.
    cpu_flags: frozenset[str]
    #: What its network devices are plugged into, as its host calls it.
    networks: tuple[str, ...]
    regions: tuple[RegionDevice, ...]


@dataclass(frozen=True)
class HostDescription:
    """What a host has to give. Bytes."""

    memory: int
    memory_free: int
    cpus: int
    cpu_flags: frozenset[str]
    #: Bridges and networks that a machine's device can be plugged into; empty: not told.
    networks: tuple[str, ...]


@dataclass(frozen=True)
class Moving:
    """How far a migration is. Times in seconds, None where the hypervisor does not say."""

    done: bool = False
    #: What is being done, where the hypervisor has several steps: "saving", "restoring".
    phase: str = "moving"
    #: Bytes; None: the hypervisor does not count them.
    transferred: int | None = None
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


@dataclass(frozen=True)
class Capabilities:
    """What differs between hypervisors, for those who have the sequence."""

    #: Machines have a region as a device that can be plugged in and pulled.
    regions: bool
    #: Guests share memory without a device, and `order_away` asks their processes to let go of it.
    grants: bool
    #: A machine that was moved stands still, whole on both sides, until `resume`. Else it runs over
    #: there as soon as its migration is done.
    held: bool


@dataclass(frozen=True)
class Event:
    """Something has happened to a machine that nobody here need have asked for."""

    machine: str
    #: "appeared", "gone", "running", "paused", "crashed", "region added", "region removed".
    kind: str


class Order(Protocol):
    """A guest's processes have let go of shared memory, and stay away until `withdraw`."""

    #: From the order to the last answer.
    seconds: float

    async def withdraw(self) -> None:
        """They may use memory again; safe at any moment, and twice."""


class Migration(ABC):
    """One move of one machine."""

    @abstractmethod
    def progress(self) -> AsyncGenerator[Moving, None]:
        """Do it; the last yielded is `done`. MachineError: it was not moved, `cancel` tidies up."""

    @abstractmethod
    async def cancel(self) -> bool:
        """End it if it is under way. True: the machine is here, and runs again unless it was moved
        by a hypervisor that holds it; False: too late, it is over there."""


class Machine(ABC):
    """A virtual machine on one host, or the place that waits for one."""

    #: As the user calls it: usually the guest's host name.
    name: str
    #: The name of the host that it is on.
    host: str
    #: The same for whoever means this machine on this host, by whatever name.
    key: str
    #: Lower case, with hyphens; None when the hypervisor gave it none.
    uuid: str | None
    #: The hypervisor's own name for it; often the guest's host name.
    own_name: str = ""

    @abstractmethod
    async def state(self) -> State: ...

    @abstractmethod
    async def describe(self) -> MachineDescription: ...

    @abstractmethod
    async def region(self) -> RegionDevice | None:
        """The region's device; None when the machine has none."""

    async def blockers(self) -> list[str]:
        """Why the hypervisor would refuse to migrate it, apart from the region's device."""
        return []

    async def prepare(self, device: RegionDevice) -> None:
        """Make the region's memory ready, so that `attach` has little left to do."""

    async def attach(self, device: RegionDevice) -> None:
        """Plug the region in; `prepare` may have come before."""
        raise self._without_regions()

    async def detach(self, device: RegionDevice, timeout: float) -> None:
        """Ask the guest to let go of the device, and take it away with its memory."""
        raise self._without_regions()

    def _without_regions(self) -> MachineError:
        return MachineError(f"{self.name} on {self.host}: its hypervisor has no region's device")

    async def order_away(self, timeout: float, waiting: Callable[[str], None]) -> Order | None:
        """Ask its guest's processes to let go of memory that they share without a device; None:
        there is no such memory."""
        return None

    @abstractmethod
    def migrate(self, target: Machine) -> Migration:
        """A move to TARGET, which the other host's hypervisor of the same kind was told to expect."""

    @abstractmethod
    async def pause(self) -> None: ...

    @abstractmethod
    async def resume(self) -> None:
        """Let it run here."""

    @abstractmethod
    async def save(self, file: str) -> None:
        """Save it to a new file of its host, from which `Hypervisor.load` brings it back, and end it."""

    @abstractmethod
    async def end(self) -> None:
        """End what is left of it here: after it has moved, or when it waits in vain."""

    async def close(self) -> None:
        """Let go of the hypervisor; the machine stays as it is."""


class Hypervisor(ABC):
    """That of one host. It uses, and does not close, the way to the host that it is given."""

    #: A frozen dataclass: the keys that a host of this kind may have in an inventory, texts, truth
    #: values and tuples of words. `__post_init__` raises ValueError for what cannot be meant.
    Settings: ClassVar[type]
    capabilities: Capabilities

    def __init__(self, host: Host, reach: Reach) -> None:
        self.host = host
        self.reach = reach

    @classmethod
    def host_of(cls, word: str) -> Host | None:
        """The host that a user's word means by itself, without an inventory; None: no such word."""
        return None

    @abstractmethod
    async def machines(self) -> list[str]:
        """Names of the machines that it knows to be there, as far as it can tell without asking them."""

    @abstractmethod
    async def machine(self, name: str) -> Machine | None:
        """The machine of that name, if it is there, in whatever state. Whoever has it closes it."""

    async def check_place(self, name: str) -> None:
        """Raise MachineError when no place can be made for that machine: its name is taken."""
        other = await self.machine(name)
        if other is None:
            return
        try:
            state = (await other.state()).value
        finally:
            await other.close()
        raise MachineError(
            f"{self.host.name} holds a machine named {name} already, {state}",
            hint="end that one, or give one of them another name",
        )

    @abstractmethod
    async def expect(self, name: str, say: Callable[[str], None]) -> Machine:
        """Make a place that waits for that machine. Nothing is left of it when this raises."""

    @abstractmethod
    async def load(self, name: str, file: str) -> Machine:
        """Bring a machine back from the file that `save` has made; it runs."""

    @abstractmethod
    async def describe(self) -> HostDescription: ...

    @abstractmethod
    def events(self) -> AsyncGenerator[Event, None]:
        """What happens to machines from now on, until the generator is closed."""

    def fresh_device(self, path: str, size: int) -> RegionDevice:
        """How a machine is given a region that has had none before."""
        return RegionDevice(path, size)

    def moved_device(self, path: str, size: int, before: RegionDevice) -> RegionDevice:
        """How a machine that comes is given this host's region in the place of the one that it had."""
        return RegionDevice(path, size, before.device, before.memory, before.bus, before.address)

    async def close(self) -> None:
        """Let go of the host's hypervisor."""
