"""The files that processes of a job leave in the folder of IVC_STATS=json:FOLDER.

Two kinds, both lines of JSON: one for each endpoint of the transport, one for each process of the MPI layer.
All counts are cumulative, so what a process that was killed has written last is what it had counted by then.
They come from other machines: each field is checked here, once.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..errors import IvcError

VERSION = 1

Count = Annotated[int, Field(ge=0, lt=1 << 64)]
#: Also since 1970: a date that calendars have.
Seconds = Annotated[float, Field(ge=0, lt=1e11, allow_inf_nan=False)]
#: k holds messages of 2^(k-1) < size <= 2^k bytes; 0 those of one byte, -1 those of none.
SizeClass = Annotated[int, Field(ge=-1, le=64)]
Rank = Annotated[int, Field(ge=0, lt=1 << 20)]


def size_class(size: int) -> int:
    """The class that messages of so many bytes are of."""
    return (size - 1).bit_length() if size else -1


class ProfileError(IvcError):
    """There is no profile, or none that can be used."""


class _Line(BaseModel):
    """Fields that a later minor change adds are passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore")


_M = TypeVar("_M", bound=BaseModel)


class Messages(_Line):
    messages: dict[SizeClass, Count] = {}
    bytes: dict[SizeClass, Count] = {}


class ByPath(_Line):
    memory: Messages = Messages()
    network: Messages = Messages()


class Operations(_Line):
    operations: Count = 0
    bytes: Count = 0


class OneSided(_Line):
    memory: Operations = Operations()
    network: Operations = Operations()


class Peer(_Line):
    endpoint: str
    rank: Rank | None = None
    host: str | None = None
    path: Literal["memory", "network", "none"]
    why: str | None = None
    sent: ByPath = ByPath()
    received: ByPath = ByPath()
    onesided: OneSided = OneSided()


class Calls(_Line):
    calls: Count
    seconds: Seconds
    bytes: Count = 0


class Sent(_Line):
    messages: Count
    bytes: Count


class TransportHead(_Line):
    host: str
    pid: int
    rank: Rank | None = None
    job: str | None = None
    adapter: str
    endpoint: str
    region: str | None = None
    begin: Seconds


class MpiHead(_Line):
    host: str
    pid: int
    rank: Rank
    size: Annotated[int, Field(ge=1, le=1 << 20)]
    job: str | None = None
    mpi: str = ""
    begin: Seconds


class _TransportSample(_Line):
    t: Seconds
    peers: list[Peer]


class MpiSample(_Line):
    t: Seconds
    time: Seconds
    in_mpi: Seconds
    calls: dict[str, Calls] = {}
    sent: dict[str, Sent] = {}


class _End(_Line):
    t: Seconds
    end: Literal[True]


class Step(NamedTuple):
    """Bytes that were begun between two samples."""

    begin: float
    end: float
    memory: int
    network: int


@dataclass
class TransportFile:
    """One endpoint: what it had counted for each peer at the end, and how that came about."""

    name: str
    head: TransportHead
    peers: dict[str, Peer] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    last: float = 0.0
    ended: bool = False
    #: Why its end is not known, beside its not having come.
    cut: str | None = None


@dataclass
class MpiFile:
    """One process, as the MPI layer saw it."""

    name: str
    head: MpiHead
    sample: MpiSample | None = None
    ended: bool = False
    cut: str | None = None


#: Seconds between two samples of the transport while something changes.
_INTERVAL = 0.5


def bytes_begun(peer: Peer) -> tuple[int, int]:
    """Bytes to a peer by memory and by network, one-sided ones included."""
    return (
        sum(peer.sent.memory.bytes.values()) + peer.onesided.memory.bytes,
        sum(peer.sent.network.bytes.values()) + peer.onesided.network.bytes,
    )


def read(path: Path) -> TransportFile | MpiFile | None:
    """One file; None when it was cut off before its first line was whole."""
    lines = path.read_bytes().split(b"\n")
    if len(lines) < 2:
        return None
    head = _parsed(path, 1, lines[0])
    kind, version = head.get("ivc"), head.get("version")
    if kind not in ("transport", "mpi") or not isinstance(version, int):
        raise ProfileError(f"{path}: no file of IVC_STATS=json:FOLDER", hint="give a folder of such files")
    if version != VERSION:
        raise ProfileError(
            f"{path}: version {version} of these files, and this ivc reads version {VERSION}",
            hint="use the ivc that belongs to the library that wrote it",
        )
    file: TransportFile | MpiFile
    if kind == "transport":
        file = TransportFile(path.name, _checked(TransportHead, path, 1, head))
    else:
        file = MpiFile(path.name, _checked(MpiHead, path, 1, head))
    if lines[-1]:
        file.cut = "its last line is cut off"
    for number, line in enumerate(lines[1:-1], start=2):
        _take(file, path, number, _parsed(path, number, line))
    return file


def _parsed(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ProfileError(f"{path}, line {number}: no object of JSON", hint="was it changed, or the disk full?")
    return found


def _checked(model: type[_M], path: Path, number: int, line: dict[str, Any]) -> _M:
    try:
        return model.model_validate(line)
    except ValidationError as fault:
        first = fault.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ProfileError(
            f"{path}, line {number}: {where}: {first['msg']}",
            hint="it is not as this version of ivc writes it",
        ) from None


def _take(file: TransportFile | MpiFile, path: Path, number: int, line: dict[str, Any]) -> None:
    if "end" in line:
        _checked(_End, path, number, line)
        file.ended = True
    elif isinstance(file, MpiFile):
        file.sample = _checked(MpiSample, path, number, line)
    else:
        _add(file, _checked(_TransportSample, path, number, line))


def _add(file: TransportFile, sample: _TransportSample) -> None:
    memory = network = 0
    for peer in sample.peers:
        now, before = bytes_begun(peer), (0, 0)
        if peer.endpoint in file.peers:
            before = bytes_begun(file.peers[peer.endpoint])
        memory += max(0, now[0] - before[0])
        network += max(0, now[1] - before[1])
        file.peers[peer.endpoint] = peer
    # While nothing changes there are no samples: what is new came in the last interval.
    begin = file.head.begin + max(min(file.last, sample.t), sample.t - _INTERVAL)
    file.steps.append(Step(begin, file.head.begin + sample.t, memory, network))
    file.last = max(file.last, sample.t)
