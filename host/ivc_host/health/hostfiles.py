"""Files and commands of a host, through the inventory's reach.

Sources that read files at the same time share one command on the host: a host with six sources is
asked once a round. A fake host is a folder: `root` stands before every path, and its `bin` comes
first where commands are looked for.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import PurePosixPath
from typing import Any

from ..errors import IvcError
from ..hypervisor.host import Host
from ..hypervisor.reach import Done, Reach
from .settings import HostSettings

#: Hosts that are asked at the same time: each is a process of ssh.
_AT_ONCE = 32
_SECONDS = 30.0
_BOOT_ID = "/proc/sys/kernel/random/boot_id"

#: The host's time; the names of all files there, each with a NUL; then their lines, each after its
#: file's name and a NUL. grep takes one process for all of them; an empty file has no line.
_READ = r"""
date +%s.%N
set -- {patterns}
for f do [ -f "$f" ] && printf '%s\0' "$f"; done
printf '\0'
grep -asHZ '' "$@" /dev/null
printf '\0end'
"""


class HostError(IvcError):
    """A host does not answer, or not as it should."""


def _quoted(pattern: str) -> str:
    """For a shell that expands *, ? and [...] and nothing else."""
    parts = re.split(r"(\*|\?|\[[^]]*\])", pattern)
    return "".join(part if at % 2 else shlex.quote(part) if part else ""
                   for at, part in enumerate(parts))  # fmt: skip


class HostFiles:
    """One host, as sources see it."""

    def __init__(
        self,
        host: Host,
        settings: HostSettings | None = None,
        root: str = "",
        gate: asyncio.Semaphore | None = None,
    ) -> None:
        self.name = host.name
        self.settings = settings or HostSettings()
        #: Seconds by which the host's clock is ahead of this machine's; None: not known.
        self.ahead: float | None = None
        #: Told apart by this: two names of one machine have the same. Empty: not known.
        self.boot_id = ""
        self.reach = Reach(host)
        self._root = root
        self._gate = gate or asyncio.Semaphore(_AT_ONCE)
        self._patterns: set[str] = set()
        self._batch: asyncio.Task[dict[str, str]] | None = None

    @property
    def names(self) -> list[str]:
        """What other sources may call it."""
        return [self.name, *self.settings.aliases]

    async def read(self, *patterns: str) -> Mapping[str, str]:
        """The regular files that match these whole paths, and what is in them."""
        self._patterns.update(patterns)
        if self._batch is None:
            self._batch = asyncio.create_task(self._read_soon())
        found = await asyncio.shield(self._batch)  # another source may still wait for it
        return {path: text for path, text in found.items()
                if any(PurePosixPath(path).match(pattern) for pattern in patterns)}  # fmt: skip

    async def _read_soon(self) -> dict[str, str]:
        await asyncio.sleep(0)  # lets every source that was started say what it wants
        async with self._gate:
            patterns, self._patterns, self._batch = sorted(self._patterns), set(), None
            root = shlex.quote(self._root) if self._root else ""
            words = " ".join(root + _quoted(pattern) for pattern in (_BOOT_ID, *patterns))
            before = time.time()
            done = await self._ask(["sh", "-c", _READ.format(patterns=words)])
            return self._understood(done.out, before, time.time())

    def _understood(self, out: str, before: float, after: float) -> dict[str, str]:
        head, _, rest = out.partition("\n")
        names, _, lines = rest.partition("\0\0")
        if not names:  # no file at all: the list's end is the first NUL
            lines = rest[1:]
        try:
            there = float(head)
        except ValueError:
            there = None
        if there is None or not lines.endswith("\0end"):
            raise HostError(
                f"host {self.name}: its answer is not whole", hint="does its shell print something?"
            )
        self.ahead = _outside(there, before, after)
        strip = len(self._root)
        files: dict[str, list[str]] = {name[strip:]: [] for name in names.split("\0") if name}
        for line in lines.removesuffix("\0end").split("\n"):
            path, found, text = line.partition("\0")
            if found:
                files.setdefault(path[strip:], []).append(text)
        whole = {path: "\n".join(texts) for path, texts in files.items()}
        self.boot_id = whole.get(_BOOT_ID, "").strip()
        return whole

    async def _ask(self, words: Sequence[str]) -> Done:
        done = await self.reach.run(words, _SECONDS)
        if done.code != 0:
            raise HostError(f"host {self.name} is not reached: {done.last_line()}")
        return done

    async def run(self, words: Sequence[str], timeout: float = _SECONDS) -> Done:
        """A command on the host, to its end; its exit status is the caller's to judge."""
        if self._root:
            words = ["env", f"PATH={self._root}/bin:/usr/sbin:/usr/bin:/sbin:/bin", *words]
        else:
            words = [
                "env",
                "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                *words,
            ]
        async with self._gate:
            done = await self.reach.run(words, timeout)
        if done.code == 255 and not self.reach.is_here:
            raise HostError(f"host {self.name} is not reached: {done.last_line()}")
        if done.code == 127:
            raise HostError(f"host {self.name} has no {words[2]}")
        return done

    async def run_json(self, words: Sequence[str], timeout: float = _SECONDS) -> Any:
        """A command that prints JSON, whatever its exit status says besides."""
        done = await self.run(words, timeout)
        try:
            return json.loads(done.out)
        except ValueError:
            raise HostError(f"host {self.name}: {words[0]}: {done.last_line()}") from None


def _outside(there: float, before: float, after: float) -> float:
    """How far THERE lies outside of the time in which it was asked for."""
    return there - after if there > after else min(there - before, 0.0)


@asynccontextmanager
async def opened(
    hosts: Sequence[Host], settings: Mapping[str, HostSettings]
) -> AsyncIterator[list[HostFiles]]:
    gate = asyncio.Semaphore(_AT_ONCE)
    found = [HostFiles(host, own := settings.get(host.name, HostSettings()), own.root, gate)
             for host in hosts]  # fmt: skip
    try:
        yield found
    finally:
        for one in found:
            await one.reach.close()
