"""What follows from a profile: rates, shares, the line of chance. Definitions: docs/profile.md."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .model import PATHS, Pair, Path_, Profile, Volume

#: Messages of a size class take so many seconds less by memory than by network.
Savings = Mapping[int, float]


@dataclass(frozen=True)
class Shares:
    """Parts of the whole, 0 to 1; of bytes and of messages."""

    bytes: float
    messages: float


@dataclass(frozen=True)
class Reason:
    """Pairs that do not use memory, for one reason."""

    path: Path_
    why: str
    pairs: int
    volume: Volume
    #: Of them, pairs whose ranks are on one host.
    together: int


@dataclass(frozen=True)
class Gain:
    """What memory instead of the network would save."""

    bytes: int
    messages: int
    #: Seconds of each rank, mean; None: no measured times were given.
    seconds: float | None


def _volume(pairs: Sequence[Pair]) -> Volume:
    return Volume(messages=sum(pair.messages for pair in pairs), bytes=sum(pair.bytes for pair in pairs))


def total(profile: Profile) -> Volume:
    return _volume(profile.between_ranks())


def share(profile: Profile, part: Callable[[Pair], Volume]) -> Shares:
    """Of all that different ranks sent each other; nothing was sent: 0."""
    whole = total(profile)
    parts = [part(pair) for pair in profile.between_ranks()]
    return Shares(
        sum(one.bytes for one in parts) / (whole.bytes or 1), sum(one.messages for one in parts) / (whole.messages or 1)
    )


def by_path(profile: Profile) -> dict[Path_, Shares]:
    def of(path: Path_) -> Shares:
        return share(profile, lambda pair: pair.by(path))

    return {path: of(path) for path in PATHS}


def hosts(profile: Profile) -> dict[int, str]:
    """On which host each rank is: where two have one region they are on one; without a region each guest counts as a host."""
    return {one.rank: one.region or one.host for one in profile.processes}


def guests(profile: Profile) -> dict[int, str]:
    return {one.rank: one.host for one in profile.processes}


def between(profile: Profile, places: Mapping[int, str]) -> Shares:
    """What crosses from one place to another. A rank whose place is unknown is in none of the others."""

    def crossing(pair: Pair) -> Volume:
        own, other = places.get(pair.sender), places.get(pair.receiver)
        together = own is not None and own == other
        return Volume() if together else Volume(messages=pair.messages, bytes=pair.bytes)

    return share(profile, crossing)


def chance(profile: Profile, places: Mapping[int, str]) -> float:
    """The part within places if all pairs sent the same: (c - 1) / (P - 1), c the ranks of a place, mean over the ranks."""
    if profile.size < 2:
        return 0.0
    each = Counter(places.values())
    return sum(count * (count - 1) for count in each.values()) / (profile.size * (profile.size - 1))


def sent_by_rank(profile: Profile) -> list[int]:
    sent = [0] * profile.size
    for pair in profile.between_ranks():
        sent[pair.sender] += pair.bytes
    return sent


def rate(profile: Profile) -> float | None:
    """Bytes per second that a process sends, mean over those whose time is known."""
    sent = sent_by_rank(profile)
    rates = [sent[one.rank] / one.seconds for one in profile.processes if one.seconds > 0]
    return sum(rates) / len(rates) if rates else None


def imbalance(profile: Profile) -> float | None:
    """The rank that sends most, over the mean: 1 is balanced."""
    sent = sent_by_rank(profile)
    return max(sent) * len(sent) / sum(sent) if sum(sent) else None


def seconds(profile: Profile) -> float:
    """The job's time: that of its longest process."""
    return max((one.seconds for one in profile.processes), default=0.0)


def in_mpi(profile: Profile) -> list[float]:
    """The part of its time that each rank was in MPI, where the MPI layer has seen it."""
    return [one.in_mpi / one.seconds for one in profile.processes if one.in_mpi is not None and one.seconds > 0]


def heaviest(profile: Profile, count: int) -> list[Pair]:
    return sorted(profile.between_ranks(), key=lambda pair: (-pair.bytes, pair.sender, pair.receiver))[:count]


def main_path(pair: Pair) -> Path_ | None:
    """By which path most of its bytes went, of no bytes its messages; None: nothing was sent."""
    if not pair.messages:
        return None
    return max(PATHS, key=lambda path: (pair.by(path).bytes, pair.by(path).messages))


def reasons(profile: Profile) -> list[Reason]:
    """Why pairs that sent something have not used memory, the heaviest first."""
    places, found = hosts(profile), defaultdict[tuple[Path_, str], list[Pair]](list)
    for pair in profile.between_ranks():
        path = main_path(pair)
        if path is not None and path != "memory":
            found[path, pair.why or "it uses memory by now"].append(pair)
    told = [_reason(path, why, pairs, places) for (path, why), pairs in found.items()]
    return sorted(told, key=lambda one: -one.volume.bytes)


def _reason(path: Path_, why: str, pairs: list[Pair], places: Mapping[int, str]) -> Reason:
    together = [pair for pair in pairs if places.get(pair.sender, "?") == places.get(pair.receiver, "??")]
    return Reason(path, why, len(pairs), _volume(pairs), len(together))


def saving(savings: Savings, key: int) -> float:
    """Of one message of a size class; one that was not measured saves what the nearest does."""
    return savings[min(savings, key=lambda size: (abs(size - key), size))]


def gain(profile: Profile, savings: Savings | None) -> Gain:
    """If all that went by network went by memory."""
    by_network = [pair.by("network") for pair in profile.between_ranks()]
    saved = None
    if savings:
        saved = 0.0
        for key, volume in profile.sizes.get("network", {}).items():
            saved += volume.messages * saving(savings, key)
        saved /= max(1, len(profile.processes))
    return Gain(sum(one.bytes for one in by_network), sum(one.messages for one in by_network), saved)


def calls(profile: Profile) -> list[tuple[str, int, float, int]]:
    """By name over all ranks: calls, seconds, bytes; what took longest first."""
    found: dict[str, list[float]] = {}
    for process in profile.processes:
        for name, one in process.calls.items():
            sums = found.setdefault(name, [0, 0.0, 0])
            sums[0] += one.calls
            sums[1] += one.seconds
            sums[2] += one.bytes
    rows = [(name, int(sums[0]), sums[1], int(sums[2])) for name, sums in found.items()]
    return sorted(rows, key=lambda row: (-row[2], row[0]))
