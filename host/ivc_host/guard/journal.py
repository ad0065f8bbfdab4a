"""What the guard has seen and done, one line of JSON each, and what is under way by it.

A line is on disk before what it announces is begun, so a guard that was killed at any moment finds
after its start which moves were not over. A line that was cut off by that is no line. Only one guard
writes: it holds a lock on the folder for as long as it lives.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from ..errors import IvcError
from .plan import Move, Tried

FOLDER = Path("/var/lib/ivc/guard")
_NAME = "journal.jsonl"
_OLD_NAME = "journal.old.jsonl"
#: Beyond that a start puts the file aside, and begins a new one with what is still of interest.
_ROTATE_BYTES = 64 << 20


class JournalError(IvcError):
    """The journal cannot be read or written; without it the guard does nothing."""


@dataclass
class OpenMove:
    """A move that has begun and not ended."""

    move: Move
    #: Seconds since 1970.
    begun: float
    #: The last phase that was begun.
    phase: str = ""
    #: The region's device that the machine had, as its hypervisor describes it; None: none.
    device: dict[str, Any] | None = None


@dataclass
class Known:
    """What the lines say together."""

    open: dict[str, OpenMove] = field(default_factory=dict)
    tried: dict[str, Tried] = field(default_factory=dict)
    #: Moves away from a host since it was last well.
    landed: list[Move] = field(default_factory=list)
    #: Hosts that are to be emptied, and who asked.
    evacuate: dict[str, str] = field(default_factory=dict)
    #: Alarms that are on: (kind, subject) -> text.
    alarms: dict[tuple[str, str], str] = field(default_factory=dict)
    #: Sequences by outcome, for counters that outlive a process.
    outcomes: dict[str, int] = field(default_factory=dict)

    def take(self, line: dict[str, Any]) -> None:
        """One line more. Of another version, or of a kind that changes nothing, it is passed over."""
        take = getattr(self, f"_take_{line.get('kind', '')}", None)
        if take is not None:
            take(line)

    def _take_begin(self, line: dict[str, Any]) -> None:
        move = Move(**line["move"])
        self.open[move.machine] = OpenMove(move, line["at"])

    def _take_phase(self, line: dict[str, Any]) -> None:
        if line["machine"] in self.open:
            self.open[line["machine"]].phase = line["phase"]

    def _take_device(self, line: dict[str, Any]) -> None:
        if line["machine"] in self.open:
            self.open[line["machine"]].device = line["device"]

    def _take_end(self, line: dict[str, Any]) -> None:
        one = self.open.pop(line["machine"], None)
        outcome = line["outcome"]
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        if one is None:
            return
        name = one.move.machine
        if outcome == "moved":
            self.landed.append(one.move)
            self.tried.pop(name, None)
        elif outcome == "failed":
            before = self.tried.get(name, Tried(0, 0.0))
            targets = before.targets | {one.move.target}
            self.tried[name] = Tried(before.times + 1, line["at"], targets)

    def _take_evacuate(self, line: dict[str, Any]) -> None:
        self.evacuate[line["host"]] = line.get("by", "")

    def _take_stay(self, line: dict[str, Any]) -> None:
        """A host need not be emptied any more: it is well, or somebody has said so."""
        self.evacuate.pop(line["host"], None)
        self.landed = [move for move in self.landed if move.source != line["host"]]

    def _take_retry(self, line: dict[str, Any]) -> None:
        """A person has mended what kept a machine from moving."""
        self.tried.pop(line["machine"], None)

    def _take_alarm(self, line: dict[str, Any]) -> None:
        self.alarms[line["alarm"], line["subject"]] = line["text"]

    def _take_calm(self, line: dict[str, Any]) -> None:
        self.alarms.pop((line["alarm"], line["subject"]), None)

    def _take_carried(self, line: dict[str, Any]) -> None:
        self.outcomes = dict(line["outcomes"])
        self.tried = {name: Tried(times, last, frozenset(targets))
                      for name, (times, last, targets) in line["tried"].items()}  # fmt: skip
        self.landed = [Move(**move) for move in line["landed"]]

    def carried(self, at: float) -> Iterator[dict[str, Any]]:
        """Lines that say the same as all so far."""
        yield {
            "at": at,
            "kind": "carried",
            "outcomes": self.outcomes,
            "tried": {name: (one.times, one.last, sorted(one.targets))
                      for name, one in self.tried.items()},  # fmt: skip
            "landed": [asdict(move) for move in self.landed],
        }
        for host, by in self.evacuate.items():
            yield {"at": at, "kind": "evacuate", "host": host, "by": by}
        for (alarm, subject), text in self.alarms.items():
            yield {"at": at, "kind": "alarm", "alarm": alarm, "subject": subject, "text": text}
        for one in self.open.values():
            name = one.move.machine
            yield {"at": one.begun, "kind": "begin", "move": asdict(one.move)}
            yield {"at": at, "kind": "phase", "machine": name, "phase": one.phase}
            if one.device is not None:
                yield {"at": at, "kind": "device", "machine": name, "device": one.device}


def read(folder: Path) -> Iterator[dict[str, Any]]:
    """All lines, from the oldest; what is no line of ours is passed over."""
    for name in (_OLD_NAME, _NAME):
        try:
            with open(folder / name, "rb") as file:
                yield from _lines(file)
        except FileNotFoundError:
            continue
        except OSError as fault:
            raise JournalError(f"journal {folder / name}: {fault.strerror}") from None


def _lines(file: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for text in file:
        try:
            line = json.loads(text)
        except ValueError:
            continue  # cut off when the guard was killed
        if isinstance(line, dict):
            yield line


def known(folder: Path) -> Known:
    """What the journal says, for one who only looks."""
    found = Known()
    try:
        with open(folder / _NAME, "rb") as file:
            for line in _lines(file):
                found.take(line)
    except FileNotFoundError:
        pass
    except OSError as fault:
        raise JournalError(f"journal {folder / _NAME}: {fault.strerror}") from None
    return found


class Log(Protocol):
    """What a guard writes down."""

    known: Known

    def write(self, kind: str, at: float, **more: Any) -> None: ...


class Unwritten:
    """For one who only looks: nothing is written, and nothing done."""

    def __init__(self, known: Known) -> None:
        self.known = known

    def write(self, kind: str, at: float, **more: Any) -> None:
        raise JournalError("this guard only looks")


class Journal:
    """The folder's journal, open for writing. JournalError: another guard has it."""

    def __init__(self, folder: Path, now: float) -> None:
        self.folder = folder
        self.known = Known()
        self._lock = self._locked()
        try:
            self._file = self._opened(now)
        except OSError as fault:
            os.close(self._lock)
            raise JournalError(f"journal {folder / _NAME}: {fault.strerror}") from None

    def _locked(self) -> int:
        try:
            self.folder.mkdir(mode=0o750, parents=True, exist_ok=True)
            lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as fault:
            raise JournalError(
                f"journal {self.folder}: {fault.strerror}", hint="name another folder with --state"
            ) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pid = os.pread(lock, 20, 0).decode(errors="replace").strip()
            os.close(lock)
            raise JournalError(
                f"another guard (process {pid or 'unknown'}) has {self.folder}",
                hint="ask that one: ivc guard status; two would move the same machines",
            ) from None
        os.truncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        return lock

    def _opened(self, now: float) -> Any:
        path = self.folder / _NAME
        file = open(path, "a+b", buffering=0)
        file.seek(0)
        for line in _lines(file):
            self.known.take(line)
        size = os.fstat(file.fileno()).st_size
        if size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n":
            file.write(b"\n")
        if size < _ROTATE_BYTES:
            return file
        file.close()
        return self._begun_anew(path, now)

    def _begun_anew(self, path: Path, now: float) -> Any:
        """The old file is put aside only when the new one says as much."""
        fresh = path.with_suffix(".new")
        with open(fresh, "wb") as file:
            for line in self.known.carried(now):
                file.write(_text(line))
            file.flush()
            os.fsync(file.fileno())
        aside = path.with_suffix(".aside")
        aside.unlink(missing_ok=True)
        os.link(path, aside)  # so that there is a journal at any moment
        os.replace(aside, self.folder / _OLD_NAME)
        os.replace(fresh, path)
        _sync_folder(self.folder)
        return open(path, "ab", buffering=0)

    def write(self, kind: str, at: float, **more: Any) -> None:
        """On disk when this returns."""
        line = {"at": at, "kind": kind, **more}
        fd = self._file.fileno()
        end = os.fstat(fd).st_size
        text = _text(line)
        try:
            if self._file.write(text) != len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(fd)
        except OSError as fault:
            with contextlib.suppress(OSError):  # what cannot be cut is no file that is read again
                os.ftruncate(fd, end)  # else the next line would be the end of this one
            raise JournalError(f"journal {self.folder / _NAME}: {fault.strerror}") from None
        self.known.take(line)

    def close(self) -> None:
        self._file.close()
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()


def _text(line: dict[str, Any]) -> bytes:
    return json.dumps(line, separators=(",", ":"), default=str).encode() + b"\n"


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
