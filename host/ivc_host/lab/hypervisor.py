"""The contract between a lab and what runs its guests.

`lab.py` owns everything around a guest: the namespace, the bridge and the taps, the region file,
the ssh keys, the record of processes, the wait for ssh and the roll-back. A mechanism (`uml.py`,
`qemu.py`, `xen.py`) knows how the guests of one host are started, and nothing else. A host is this
machine in most labs; with Xen it is a machine of its own, which runs its guests. Invariants:

* a mechanism writes only below its cache directory (in `prepare`) and below `GuestSpec.state` and
  `HostSpec.state` (in `start`), so that removing the lab's directory removes every trace of it;
* every process that `start` makes lives in the lab's network namespace, with its working directory
  in one of those, and dies by SIGKILL without leaving anything behind;
* the guest comes up without any further action of the host and then answers ssh as root on
  `GuestSpec.address`, accepting `GuestSpec.keys`; a host that is a machine of its own does so too;
* a guest's spec of one host and that of another differ in `host`, `tap` and `region` alone, so the
  machine that `receive` starts fits the one that `start` started.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from .process import Process

#: Every lab has the same addresses: each has a namespace of its own, so they never meet.
BRIDGE = "br0"
BRIDGE_ADDRESS = "10.77.0.1"
PREFIX_LENGTH = 24
NETWORK = "10.77.0.0/24"
FIRST_GUEST = 11
MAX_GUESTS = 200
#: Of the hosts that are machines of their own.
FIRST_HOST = FIRST_GUEST + MAX_GUESTS
MAX_HOSTS = 40


@dataclass(frozen=True)
class SshKeys:
    """The keys of one lab. The same identity logs in from this machine and from guest to guest."""

    #: Private and public half of the identity; `identity.with_suffix(".pub")` is the latter.
    identity: Path
    #: Private half of every guest's host key; the public half lies beside it with `.pub`.
    host_key: Path
    authorized_keys: Path
    known_hosts: Path
    #: The content of the guests' /etc/hosts.
    hosts: Path

    def public(self) -> str:
        return self.identity.with_suffix(".pub").read_text().strip()


@dataclass(frozen=True)
class Copy:
    """A host directory as it was when the lab came up: a disk that nobody writes to."""

    image: Path
    #: Where the guest sees it, which is where it is on the host.
    path: Path


@dataclass(frozen=True)
class GuestSpec:
    """Everything that a mechanism must know to start one guest."""

    name: str
    #: 1 for the first guest.
    index: int
    #: Which of the lab's "hosts" it stands on, from 1; guests of one host share a region.
    host: int
    #: The machine's own, wherever it moves.
    uuid: str
    #: Dotted IPv4 address; the network is NETWORK, there is no route out of it.
    address: str
    mac: str
    #: The tap device, already made, up and on the bridge, inside `namespace`; empty where the host
    #: is a machine of its own, which has one.
    tap: str
    memory_mb: int
    #: The shared region's file, or None for a guest without one.
    region: Path | None
    region_size: int
    #: The guest's console output goes here (appended, never truncated by the guest).
    console: Path
    #: A directory of this guest alone, made by the lab, removed with the lab.
    state: Path
    #: The network namespace's file; start processes with `process.spawn(namespace=...)`.
    namespace: Path
    keys: SshKeys
    #: Host directories that the guest must see read-only at the same path (the build tree).
    share: tuple[Path, ...] = ()
    #: Used instead of `share` for guests that can migrate, or cannot see a directory live.
    copies: tuple[Copy, ...] = ()


@dataclass(frozen=True)
class HostSpec:
    """One of the lab's "hosts". Where it is this machine, only its guests matter."""

    name: str
    #: From 1.
    number: int
    #: Those that start here.
    guests: tuple[GuestSpec, ...]
    #: For how many guests it must have memory: some may move here.
    room: int
    memory_mb: int
    address: str
    mac: str
    tap: str
    console: Path
    #: A directory of this host alone, made by the lab, removed with the lab.
    state: Path
    #: One on a disk, the same for all hosts, for what is too large for `state`.
    store: Path
    #: As soon as it has started its guests, the host keeps in this file, below `state`, the UUIDs
    #: of those that live on it, one a line. It replaces the file as a whole.
    roll: Path
    namespace: Path
    keys: SshKeys
    copies: tuple[Copy, ...] = ()


class Progress(Protocol):
    """How a mechanism tells the user what it is doing; never blocks and never fails."""

    def step(self, text: str) -> None:
        """A new thing has begun, in words that fit one line."""


class SilentProgress:
    """Progress for those who do not look."""

    def step(self, text: str) -> None:
        del text


class Hypervisor(Protocol):
    """One way to run guests."""

    name: str
    #: Seconds from `start` to a first ssh login after which a guest counts as lost.
    ready_timeout: float
    #: Memory of one guest in MiB when the user names none.
    default_memory_mb: int
    #: Whether a guest can move to another host while it runs, by `receive` or by means of its own.
    migrates: bool
    #: Whether a host is a machine of its own, with an address, rather than this one.
    own_hosts: bool
    #: Whether a guest can have a region: a file of this machine that the guests of a host share.
    regions: bool
    #: Whether a guest that stays where it is sees directories of this machine live, not as copies.
    live_shares: bool

    def prepare(self, progress: Progress) -> None:
        """Make what all guests share (images), once; idempotent, and offline the second time.

        Safe against a second caller at the same time (use `cache_lock`), and against Ctrl-C: what
        is half made is not taken for done.
        """

    def check(self, hosts: Sequence[HostSpec]) -> None:
        """Raise an IvcError when all of these cannot run here; called before the first starts."""

    def start(self, host: HostSpec) -> dict[str, list[Process]]:
        """Start the guests of a host and return at once, without waiting for them to boot.

        Returns for each guest the processes without which it is lost, and under the host's name
        those of a host that is a machine of its own. Raises an IvcError when it cannot; the lab
        then ends what was started.
        """

    def receive(self, spec: GuestSpec) -> list[Process]:
        """Start what takes in a guest that moves to this spec's host, without a region; as `start`.

        For `ivc migrate`; guests that move by other means or not at all raise LabError saying so.
        """

    def guest_description(self) -> str:
        """What a guest is, in one line, for people who judge a figure measured on it."""


def cache_dir() -> Path:
    """The directory for things that are made once and kept (images, root directories)."""
    if own := os.environ.get("IVC_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "ivc"


@contextmanager
def cache_lock(name: str) -> Iterator[Path]:
    """Hold the cache entry NAME for oneself; yields the path where it is, or is to be, made.

    Build beside it and rename into place: what exists under that path is always complete.
    """
    base = cache_dir()
    base.mkdir(parents=True, exist_ok=True)
    with open(base / f".{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield base / name
