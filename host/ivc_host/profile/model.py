"""A profile: what one job has sent, by pair of ranks and by path. The file that `ivc profile` writes, docs/profile.md."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..errors import UsageError
from .raw import Calls, Count, Rank, Seconds, SizeClass

VERSION = 1

#: How bytes went: by memory of ivc, by its network, or inside the MPI, which does not ask ivc then.
Path_ = Literal["memory", "network", "mpi"]
NAMES: dict[Path_, str] = {"memory": "memory", "network": "network", "mpi": "inside the MPI"}
PATHS: tuple[Path_, ...] = tuple(NAMES)


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore")


class Volume(_Part):
    messages: Count = 0
    bytes: Count = 0

    def add(self, messages: int, size: int) -> None:
        self.messages += messages
        self.bytes += size


#: Paths by which nothing went are left out.
Volumes = dict[Path_, Volume]


class Pair(_Part):
    """What one rank has sent to another."""

    sender: Rank
    receiver: Rank
    #: Where its next message would go, as the sender saw it last; None: it never said.
    path: Literal["memory", "network", "none", "mpi"] | None = None
    #: Why that is not memory.
    why: str | None = None
    #: Messages, as the sender counted them.
    sent: Volumes = {}
    #: The same as the receiver counted them; None: it left no file.
    received: Volumes | None = None
    #: One-sided operations of the sender, which the receiver does not see.
    onesided: Volumes = {}

    def by(self, path: Path_) -> Volume:
        """All that went by a path."""
        one, other = self.sent.get(path, Volume()), self.onesided.get(path, Volume())
        return Volume(messages=one.messages + other.messages, bytes=one.bytes + other.bytes)

    @property
    def bytes(self) -> int:
        return sum(self.by(path).bytes for path in PATHS)

    @property
    def messages(self) -> int:
        return sum(self.by(path).messages for path in PATHS)

    def is_unequal(self) -> bool:
        """Whether sender and receiver, where both have counted, have counted differently."""
        return self.received is not None and _carried(self.sent) != _carried(self.received)


def _carried(volumes: Volumes) -> tuple[int, int]:
    """By ivc, whichever the path: a move may come between a message's begin and its arrival."""
    of = [volumes.get("memory", Volume()), volumes.get("network", Volume())]
    return sum(one.messages for one in of), sum(one.bytes for one in of)


class Process(_Part):
    """One rank."""

    rank: Rank
    host: str
    pid: int
    #: Ranks of one region are on one host, whatever their guests; None: it has none.
    region: str | None = None
    adapters: list[str] = []
    #: Seconds from MPI_Init to MPI_Finalize; without the MPI layer, the life of its endpoint.
    seconds: Seconds = 0.0
    #: Seconds in MPI; None without the MPI layer.
    in_mpi: Seconds | None = None
    calls: dict[str, Calls] = {}
    #: Whether all of its files came to their end.
    complete: bool = True


class Step(_Part):
    """Bytes that were sent in a stretch of time; from the beginning of the job, in seconds."""

    begin: Seconds
    end: Seconds
    memory: Count
    network: Count


class Profile(_Part):
    ivc: Literal["profile"] = "profile"
    version: Literal[1] = 1
    complete: bool = True
    #: What is missing or in doubt, in words.
    remarks: list[str] = []
    command: list[str] = []
    exit_status: int | None = None
    #: Seconds since 1970.
    begin: Seconds = 0.0
    job: str | None = None
    mpi: str = ""
    size: Annotated[int, Field(ge=1, le=1 << 20)]
    processes: list[Process]
    pairs: list[Pair]
    #: Messages by size class, for each path.
    sizes: dict[Path_, dict[SizeClass, Volume]] = {}
    steps: list[Step] = []

    def between_ranks(self) -> list[Pair]:
        """The pairs of different ranks: what a rank sends to itself needs no path."""
        return [pair for pair in self.pairs if pair.sender != pair.receiver]


def load(file: Path) -> Profile:
    """A profile that was written before."""
    try:
        data = json.loads(file.read_bytes())
    except OSError as fault:
        raise UsageError(f"cannot read {file}: {fault.strerror}") from None
    except (ValueError, RecursionError) as fault:
        raise UsageError(f"{file} is no JSON, or is cut off: {fault}", hint="name a file that ivc profile wrote") from None
    if not isinstance(data, dict) or data.get("ivc") != "profile":
        raise UsageError(f"{file} is no profile", hint="name a file that ivc profile wrote")
    if data.get("version") != VERSION:
        raise UsageError(
            f"{file} is a profile of version {data.get('version')}, and this ivc reads version {VERSION}",
            hint="use the ivc that wrote it",
        )
    try:
        return _consistent(Profile.model_validate(data), file)
    except ValidationError as fault:
        first = fault.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UsageError(f"{file}: {where}: {first['msg']}", hint="name a file that ivc profile wrote") from None


def _consistent(profile: Profile, file: Path) -> Profile:
    ranks = [one.rank for one in profile.processes]
    ranks += [rank for pair in profile.pairs for rank in (pair.sender, pair.receiver)]
    if any(rank >= profile.size for rank in ranks) or len({one.rank for one in profile.processes}) < len(profile.processes):
        raise UsageError(f"{file}: its ranks do not fit a job of {profile.size}", hint="name a file that ivc profile wrote")
    return profile


def save(profile: Profile, file: Path) -> None:
    file.write_text(profile.model_dump_json(indent=1) + "\n")


def save_matrix(profile: Profile, file: Path, measure: Callable[[Pair], int]) -> None:
    """A line for each sender and a column for each receiver, as spreadsheets read them."""
    lines = [["sender"] + [str(rank) for rank in range(profile.size)]]
    found = {(pair.sender, pair.receiver): measure(pair) for pair in profile.pairs}
    for sender in range(profile.size):
        lines.append([str(sender)] + [str(found.get((sender, receiver), 0)) for receiver in range(profile.size)])
    file.write_text("".join(",".join(line) + "\n" for line in lines))
