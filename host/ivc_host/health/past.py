"""What was read before, in a file of SQLite: it survives a restart, and several commands share it.

Of each item the state is kept, and of its value each change within two days: enough for growth by the
hour and the day, whatever the number of rounds.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .contract import HealthError, Level, Reading
from .judge import ItemKey, ItemState, Rule, fold

_FOLDER = Path("/var/lib/ivc/guard")
_KEEP_SECONDS = 2 * 86400.0
_LOCK_SECONDS = 30.0

_TABLES = """
CREATE TABLE IF NOT EXISTS item (host TEXT, source TEXT, item TEXT, state TEXT,
    PRIMARY KEY (host, source, item));
CREATE TABLE IF NOT EXISTS value (host TEXT, source TEXT, item TEXT, at REAL, value REAL,
    PRIMARY KEY (host, source, item, at));
CREATE TABLE IF NOT EXISTS sample (host TEXT, at REAL, sample TEXT, PRIMARY KEY (host, at));
CREATE TABLE IF NOT EXISTS idle (host TEXT PRIMARY KEY, boot TEXT, used INTEGER);
"""


def file_for(inventory: Path) -> Path:
    """The file that goes with an inventory."""
    name = str(inventory.resolve()).strip("/").replace("/", "-")
    return _FOLDER / f"{name.removesuffix('.toml')}.db"


class PastFile:
    """The file, open. Fulfils contract.Past."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, timeout=_LOCK_SECONDS, isolation_level=None)
            self._db.executescript(_TABLES)
        except (OSError, sqlite3.Error) as fault:
            raise self._fault(fault) from None

    def _fault(self, fault: Exception) -> HealthError:
        why = getattr(fault, "strerror", None) or str(fault)
        return HealthError(
            f"cannot keep what was read in {self._path}: {why}",
            hint="run this as root, or name another file as 'state' in guard.toml; a spoiled one may be deleted",
        )

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")
                yield self._db
        except (sqlite3.Error, ValueError, TypeError) as fault:
            raise self._fault(fault) from None

    def _rows(self, query: str, *values: Any) -> list[Any]:
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.Error as fault:
            raise self._fault(fault) from None

    def close(self) -> None:
        self._db.close()

    def value_before(self, host: str, source: str, item: str, at: float) -> float | None:
        which = "FROM value WHERE host = ? AND source = ? AND item = ?"
        rows = self._rows(
            f"SELECT value {which} AND at <= ? ORDER BY at DESC LIMIT 1", host, source, item, at
        ) or self._rows(f"SELECT value {which} ORDER BY at LIMIT 1", host, source, item)
        return rows[0][0] if rows else None

    def last(self, host: str, source: str) -> list[Reading]:
        found = self._states("WHERE host = ? AND source = ?", host, source)
        return [
            Reading(host, source, key.item, state.said, state.text, at=state.at)
            for key, state in found.items() if state.said.rank > Level.OK.rank
        ]  # fmt: skip

    def states(self) -> dict[ItemKey, ItemState]:
        return self._states("")

    def _states(self, which: str, *values: str) -> dict[ItemKey, ItemState]:
        rows = self._rows(f"SELECT host, source, item, state FROM item {which}", *values)
        try:
            return {ItemKey(*row[:3]): _state(row[3]) for row in rows}
        except (ValueError, TypeError, KeyError) as fault:
            raise self._fault(fault) from None

    def take(
        self, readings: Iterable[Reading], rules: Mapping[str, Rule]
    ) -> dict[ItemKey, ItemState]:
        """Fold one round in; the states after it."""
        readings = list(readings)
        with self._transaction() as db:
            before = self.states()
            after = fold(before, readings, rules)
            for key in before.keys() - after.keys():
                db.execute("DELETE FROM item WHERE host = ? AND source = ? AND item = ?",
                           (key.host, key.source, key.item))  # fmt: skip
            db.executemany(
                "INSERT OR REPLACE INTO item VALUES (?, ?, ?, ?)",
                [(key.host, key.source, key.item, json.dumps(asdict(state)))
                 for key, state in after.items() if state != before.get(key)],
            )  # fmt: skip
            for one in readings:
                if one.value is not None:
                    self._keep_value(db, one, before)
        return after

    @staticmethod
    def _keep_value(
        db: sqlite3.Connection, one: Reading, before: Mapping[ItemKey, ItemState]
    ) -> None:
        key = ItemKey(one.host, one.source, one.item)
        if key in before and before[key].value == one.value:
            return
        where = (*asdict(key).values(), one.at - _KEEP_SECONDS)
        which = "host = ? AND source = ? AND item = ? AND at <= ?"
        db.execute(f"DELETE FROM value WHERE {which} AND at < (SELECT max(at) FROM value WHERE {which})",
                   (*where, *where))  # fmt: skip
        db.execute("INSERT OR REPLACE INTO value VALUES (?, ?, ?, ?, ?)",
                   (one.host, one.source, one.item, one.at, one.value))  # fmt: skip

    def clear(self, host: str) -> int:
        """Forget what is held against the host; how many items that were."""
        with self._transaction() as db:
            return db.execute("DELETE FROM item WHERE host = ?", (host,)).rowcount

    def add_sample(self, host: str, at: float, sample: Mapping[str, Any], keep: float) -> None:
        with self._transaction() as db:
            db.execute("DELETE FROM sample WHERE host = ? AND at < ?", (host, at - keep))
            db.execute("INSERT OR REPLACE INTO sample VALUES (?, ?, ?)",
                       (host, at, json.dumps(sample)))  # fmt: skip

    def samples(self, host: str) -> list[dict[str, Any]]:
        """Of the oldest first."""
        rows = self._rows("SELECT sample FROM sample WHERE host = ? ORDER BY at", host)
        return [json.loads(row[0]) for row in rows]

    def idle_memory(self, host: str, boot: str, used: int) -> int:
        """The least memory that was in use since the host booted, USED included."""
        with self._transaction() as db:
            row = db.execute("SELECT boot, used FROM idle WHERE host = ?", (host,)).fetchone()
            least = min(row[1], used) if row and row[0] == boot else used
            db.execute("INSERT OR REPLACE INTO idle VALUES (?, ?, ?)", (host, boot, least))
        return int(least)


def _state(text: str) -> ItemState:
    data = json.loads(text)
    return ItemState(**{**data, "level": Level(data["level"]), "said": Level(data["said"])})
