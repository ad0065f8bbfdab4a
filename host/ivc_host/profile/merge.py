"""All files of a job become one profile."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from .model import Pair, Path_, Process, Profile, Step, Volume, Volumes
from .raw import ByPath, MpiFile, Peer, ProfileError, TransportFile, read

#: The time line of a profile has at most so many steps.
_STEPS = 200

_CARRIED: tuple[Path_, ...] = ("memory", "network")


@dataclass
class Files:
    """What was found in the folders."""

    transport: list[TransportFile] = field(default_factory=list)
    mpi: list[MpiFile] = field(default_factory=list)
    #: Names of those that were cut off before their first line was whole.
    broken: list[str] = field(default_factory=list)

    def all(self) -> list[TransportFile | MpiFile]:
        """Those of the MPI layer first: its ranks are MPI's own."""
        return [*self.mpi, *self.transport]

    def is_empty(self) -> bool:
        return not self.transport and not self.mpi and not self.broken


def read_folders(folders: Iterable[Path]) -> Files:
    """All files below; one that two folders have (hosts that share a disk) counts once, the longer one."""
    chosen: dict[tuple[str, bytes], Path] = {}
    for path in (path for folder in folders for path in sorted(folder.rglob("*.jsonl"))):
        with path.open("rb") as opened:
            key = (path.name, opened.readline())  # two hosts of one name have files of one name
        before = chosen.get(key)
        if before is None or before.stat().st_size < path.stat().st_size:
            chosen[key] = path
    found = Files()
    for path in chosen.values():
        file = read(path)
        if file is None:
            found.broken.append(path.name)
        elif isinstance(file, MpiFile):
            found.mpi.append(file)
        else:
            found.transport.append(file)
    return found


def merge(files: Files, job: str | None = None) -> Profile:
    """One profile of the files of one job; JOB chooses, where they are of several."""
    files = _of_one_job(files, job)
    if not files.transport and not files.mpi:
        raise ProfileError("no file of the job is whole", hint="was the disk full?")
    ranks = _Ranks(files)
    processes = _processes(files, ranks)
    pairs = _Pairs(files, ranks)
    size = max([file.head.size for file in files.mpi] + [1 + rank for rank in {*processes, *chain(*pairs.found)}])
    remarks = _remarks(files, processes, size, pairs)
    jobs = _jobs(files)
    return Profile(
        complete=not remarks,
        remarks=[*remarks, *pairs.doubts()],
        begin=min(_begins(files)),
        job=next(iter(jobs), None),
        mpi=next((file.head.mpi for file in files.mpi if file.head.mpi), ""),
        size=size,
        processes=[processes[rank] for rank in sorted(processes)],
        pairs=[pairs.found[key] for key in sorted(pairs.found)],
        sizes=_sizes(files.transport),
        steps=_steps(files.transport, min(_begins(files))),
    )


def _begins(files: Files) -> list[float]:
    return [file.head.begin for file in files.all()]


def _jobs(files: Files) -> list[str]:
    return list(dict.fromkeys(file.head.job for file in files.all() if file.head.job))


def _of_one_job(files: Files, job: str | None) -> Files:
    """Those of the job; a file that names none belongs to the job of its process, if that is known."""
    jobs = _jobs(files)
    if job is None and len(jobs) < 2:
        return files
    if job not in jobs:
        raise ProfileError(
            f"files of {len(jobs)} jobs: {', '.join(jobs)}" if job is None else f"no file is of job {job}",
            hint="choose one with --job" if jobs else None,
        )
    of = {(file.head.host, file.head.pid): file.head.job for file in files.all() if file.head.job}

    def ours(file: TransportFile | MpiFile) -> bool:
        return (file.head.job or of.get((file.head.host, file.head.pid), job)) == job

    return Files([f for f in files.transport if ours(f)], [f for f in files.mpi if ours(f)], files.broken)


class _Ranks:
    """Which rank a process, and an endpoint, is of."""

    def __init__(self, files: Files) -> None:
        self._of_process: dict[tuple[str, int], int] = {}
        for file in files.all():
            if file.head.rank is not None:
                self._of_process.setdefault((file.head.host, file.head.pid), file.head.rank)
        self._check()
        self._number(files.transport)
        self._of_endpoint = {file.head.endpoint: self.of(file) for file in files.transport}

    def _check(self) -> None:
        holder: dict[int, tuple[str, int]] = {}
        for process, rank in self._of_process.items():
            other = holder.setdefault(rank, process)
            if other != process:
                raise ProfileError(
                    f"files of two jobs: rank {rank} is process {other[1]} on {other[0]} and {process[1]} on {process[0]}",
                    hint="give a folder that has the files of one job",
                )

    def _number(self, files: Sequence[TransportFile]) -> None:
        """Programs without an MPI have no ranks: they get the next numbers, in order of host and process."""
        nameless = sorted({(file.head.host, file.head.pid) for file in files} - set(self._of_process))
        first = max(self._of_process.values(), default=-1) + 1
        for rank, process in enumerate(nameless, start=first):
            self._of_process[process] = rank

    def of(self, file: TransportFile | MpiFile) -> int:
        return self._of_process[file.head.host, file.head.pid]

    def of_peer(self, peer: Peer) -> int | None:
        """Its own file knows best: a peer may have been told another job's number."""
        return self._of_endpoint.get(peer.endpoint, peer.rank)


def _processes(files: Files, ranks: _Ranks) -> dict[int, Process]:
    found: dict[int, Process] = {}
    for file in files.transport:
        one = _process(found, file, ranks.of(file))
        one.region = one.region or file.head.region
        one.seconds = max(one.seconds, file.last)
        one.adapters = list(dict.fromkeys([*one.adapters, file.head.adapter]))
    for own in files.mpi:
        one = _process(found, own, ranks.of(own))
        if own.sample is not None:
            one.seconds, one.in_mpi, one.calls = own.sample.time, own.sample.in_mpi, own.sample.calls
    return found


def _process(found: dict[int, Process], file: TransportFile | MpiFile, rank: int) -> Process:
    one = found.setdefault(rank, Process(rank=rank, host=file.head.host, pid=file.head.pid))
    one.complete = one.complete and file.ended
    return one


class _Pairs:
    """Traffic by pair of ranks."""

    def __init__(self, files: Files, ranks: _Ranks) -> None:
        self.found: dict[tuple[int, int], Pair] = {}
        #: Bytes to endpoints of which nobody knows the rank.
        self.unknown = 0
        self._complete = {ranks.of(file) for file in files.transport}
        self._complete -= {ranks.of(file) for file in files.transport if not file.ended}
        for file in files.transport:
            for peer in file.peers.values():
                self._take(ranks.of(file), peer, ranks.of_peer(peer))
        for own in files.mpi:
            self._take_calls(ranks.of(own), own)
        self._fill()

    def _pair(self, sender: int, receiver: int) -> Pair:
        return self.found.setdefault((sender, receiver), Pair(sender=sender, receiver=receiver))

    def _take(self, own: int, peer: Peer, other: int | None) -> None:
        if other is None:
            self.unknown += _volume(peer.sent, "memory").bytes + _volume(peer.sent, "network").bytes
            return
        to, back = self._pair(own, other), self._pair(other, own)
        to.path, to.why = peer.path, peer.why
        back.received = {} if back.received is None else back.received
        for path in _CARRIED:
            operations = getattr(peer.onesided, path)
            _add(to.sent, path, _volume(peer.sent, path))
            _add(back.received, path, _volume(peer.received, path))
            _add(to.onesided, path, Volume(messages=operations.operations, bytes=operations.bytes))

    def _take_calls(self, rank: int, own: MpiFile) -> None:
        """What the program sent to where the transport carried nothing, the MPI has carried itself."""
        for name, sent in (own.sample.sent if own.sample else {}).items():
            if not re.fullmatch("[0-9]{1,7}", name) or int(name) >= own.head.size or int(name) == rank:
                continue  # "other", or itself
            pair = self._pair(rank, int(name))
            if pair.messages == 0 and sent.messages and not pair.received:
                pair.path, pair.why = "mpi", "the MPI carries it itself"
                _add(pair.sent, "mpi", Volume(messages=sent.messages, bytes=sent.bytes))

    def _fill(self) -> None:
        """A sender that was killed has counted less than has arrived: what has arrived was sent."""
        for pair in self.found.values():
            if pair.received is None or pair.sender in self._complete:
                continue
            for path, volume in pair.received.items():
                if volume.bytes > pair.sent.get(path, Volume()).bytes:
                    pair.sent[path] = volume.model_copy()

    def doubts(self) -> list[str]:
        """Nothing is missing, and yet something is odd."""
        whole = self._complete
        unequal = [
            key for key, pair in self.found.items() if pair.is_unequal() and {pair.sender, pair.receiver} <= whole
        ]
        if not unequal:
            return []
        some = ", ".join(f"{sender} to {receiver}" for sender, receiver in sorted(unequal)[:3])
        return [f"sender and receiver have counted differently for {len(unequal)} pairs, such as {some}"]


def _add(volumes: Volumes, path: Path_, volume: Volume) -> None:
    if volume.messages or volume.bytes:
        volumes.setdefault(path, Volume()).add(volume.messages, volume.bytes)


def _volume(both: ByPath, path: Path_) -> Volume:
    one = getattr(both, path)
    return Volume(messages=sum(one.messages.values()), bytes=sum(one.bytes.values()))


def _remarks(files: Files, processes: dict[int, Process], size: int, pairs: _Pairs) -> list[str]:
    """Why the profile is not complete; nothing: it is."""
    remarks = [f"{name} was cut off before it said anything" for name in files.broken]
    remarks += [f"{file.name}: {file.cut}" for file in files.all() if file.cut]
    cut = [rank for rank, one in processes.items() if not one.complete]
    if cut:
        remarks.append(f"{_ranks(cut)} ended before MPI_Finalize, or were killed: what they had counted by then is here")
    silent = [rank for rank in range(size) if rank not in processes]
    if silent:
        remarks.append(f"{_ranks(silent)} left no file: killed at their start, or on a host that was not asked")
    if pairs.unknown:
        remarks.append(f"{pairs.unknown} bytes went to processes that left no file")
    return remarks


def _ranks(numbers: Iterable[int]) -> str:
    some = sorted(numbers)
    text = ", ".join(map(str, some[:8])) + (", ..." if len(some) > 8 else "")
    return f"rank {text}" if len(some) == 1 else f"ranks {text}"


def _sizes(files: Sequence[TransportFile]) -> dict[Path_, dict[int, Volume]]:
    found: dict[Path_, dict[int, Volume]] = {path: defaultdict(Volume) for path in _CARRIED}
    for file in files:
        for peer in file.peers.values():
            for path in _CARRIED:
                one = getattr(peer.sent, path)
                for key in {*one.messages, *one.bytes}:
                    found[path][key].add(one.messages.get(key, 0), one.bytes.get(key, 0))
    return {path: {key: by[key] for key in sorted(by)} for path, by in found.items()}


def _steps(files: Sequence[TransportFile], begin: float) -> list[Step]:
    """The job's time in equal steps; what was sent between two samples is spread over the time between them."""
    all_steps = [step for file in files for step in file.steps if step.memory or step.network]
    if not all_steps:
        return []
    span = max(step.end for step in all_steps) - begin
    count = max(1, min(_STEPS, round(span / 0.5)))
    width = max(span / count, 1e-3)
    memory, network = [0.0] * count, [0.0] * count
    for step in all_steps:
        for index, part in _spread(step.begin - begin, step.end - begin, width, count):
            memory[index] += part * step.memory
            network[index] += part * step.network
    return [
        Step(begin=i * width, end=(i + 1) * width, memory=round(memory[i]), network=round(network[i]))
        for i in range(count)
    ]  # fmt: skip


def _spread(begin: float, end: float, width: float, count: int) -> Iterable[tuple[int, float]]:
    """Which steps a stretch of time touches, and which part of it lies in each."""
    first = min(count - 1, max(0, int(begin / width)))
    last = min(count - 1, max(first, int(end / width)))
    if first == last or end <= begin:
        return [(last, 1.0)]
    edges = [begin, *(width * index for index in range(first + 1, last + 1)), end]
    return [(first + i, (edges[i + 1] - edges[i]) / (end - begin)) for i in range(len(edges) - 1)]
