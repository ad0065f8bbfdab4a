"""Commands, files and sockets of a host: of this machine, or of another one through ssh.

Whatever is opened is closed by `close`; a started command is ended with the call that started it.
"""

from __future__ import annotations

import asyncio
import contextlib
import glob
import os
import shlex
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .. import paths
from .faults import GoneError, MachineError
from .host import Host

_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=30", "-o", "ServerAliveInterval=5")
_FORWARD_SECONDS = 15.0
_LOOK_SECONDS = 30.0


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    error: str

    def last_line(self) -> str:
        lines = (self.error.strip() or self.out.strip()).splitlines()
        return lines[-1].strip() if lines else f"it says nothing and ends with {self.code}"


def tool(name: str) -> str:
    """A program of the project: the build's when there is one, else whatever PATH has."""
    built = paths.build() / "tools" / name
    return str(built) if built.is_file() else name


class Reach:
    """One host."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._forwards: dict[str, tuple[str, asyncio.subprocess.Process]] = {}
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    @property
    def is_here(self) -> bool:
        return not self.host.ssh

    def command(self, words: Sequence[str]) -> list[str]:
        """The command that runs WORDS on the host."""
        return list(words) if self.is_here else [*_SSH, *self.host.ssh, "--", shlex.join(words)]

    def own(self, name: str) -> list[str]:
        """A program of the project on that host: `ivc`, or a tool."""
        if not self.is_here:
            return [name]
        return [sys.executable, "-m", "ivc_host"] if name == "ivc" else [tool(name)]

    async def run(
        self, words: Sequence[str], timeout: float = _LOOK_SECONDS, given: str = ""
    ) -> Done:
        """Run to the end, with GIVEN as its input; 124 when it took too long, 127 when there is no
        such program."""
        # Files, not pipes: a daemon that the command leaves behind would keep a pipe open.
        with (
            tempfile.TemporaryFile() as into,
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as error,
        ):
            into.write(given.encode())
            into.seek(0)
            try:
                process = await asyncio.create_subprocess_exec(
                    *self.command(words),
                    stdin=into,
                    stdout=out,
                    stderr=error,
                    start_new_session=True,
                )
            except OSError as fault:
                return Done(127, "", f"{words[0]}: {fault.strerror}")
            code = await _end_of(process, timeout)
            said = [_content(file.fileno()) for file in (out, error)]
        if code == 124 and not said[1]:
            said[1] = f"it has not ended in {timeout:.0f} s"
        return Done(code, said[0], said[1])

    async def sockets(self, pattern: str) -> list[str]:
        """Paths of sockets that match."""
        if self.is_here:
            return [path for path in glob.glob(pattern) if _is_socket(path)]
        done = await self._ask(["sh", "-c", f"{_list(pattern)}; true"])
        return done.out.split("\n")[:-1]

    async def watch_sockets(self, pattern: str, every: float) -> AsyncGenerator[list[str], None]:
        """Those that match now, and again and again: by one command, whatever the host's distance."""
        loop = f"while :; do {_list(pattern)}; echo; sleep {every:g}; done"
        found: list[str] = []
        async with contextlib.aclosing(self.lines(["sh", "-c", loop])) as lines:
            async for path in lines:
                if path:
                    found.append(path)
                    continue
                yield found
                found = []

    async def lines(self, words: Sequence[str]) -> AsyncGenerator[str, None]:
        """What a command says that goes on until this is closed. GoneError: it has ended by itself."""
        try:
            process = await asyncio.create_subprocess_exec(
                *self.command(words),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as fault:
            raise MachineError(f"{words[0]} on {self.host.name}: {fault.strerror}") from None
        assert process.stdout is not None
        try:
            while line := await process.stdout.readline():
                yield line.decode(errors="replace").rstrip("\n")
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await process.wait()
        raise GoneError(f"{words[0]} on {self.host.name} has ended, or the way there is cut")

    async def socket(self, path: str) -> str | None:
        """A path of this machine that leads to the host's socket; None when there is none."""
        if self.is_here:
            return path if _is_socket(path) else None
        done = await self._ask(["sh", "-c", f"[ -S {shlex.quote(path)} ] && echo yes; true"])
        return await self._forward(path) if done.out else None

    async def _ask(self, words: Sequence[str]) -> Done:
        done = await self.run(words)
        if done.code != 0:
            raise MachineError(f"host {self.host.name} is not reached: {done.last_line()}")
        return done

    async def _forward(self, path: str) -> str:
        if path in self._forwards:
            here, process = self._forwards[path]
            if process.returncode is None:
                return here
        self._scratch = self._scratch or tempfile.TemporaryDirectory(prefix="ivc-reach-")
        here = str(Path(self._scratch.name) / f"{len(self._forwards)}.{os.getpid()}")
        Path(here).unlink(missing_ok=True)
        process = await asyncio.create_subprocess_exec(
            *(*_SSH, "-N", "-o", "ExitOnForwardFailure=yes", "-L", f"{here}:{path}"),
            *self.host.ssh,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._forwards[path] = (here, process)
        for _ in range(int(_FORWARD_SECONDS / 0.05)):
            if _is_socket(here):
                return here
            if process.returncode is not None:
                break
            await asyncio.sleep(0.05)
        raise MachineError(f"host {self.host.name}: ssh does not lead to its socket {path}")

    async def close(self) -> None:
        for _, process in self._forwards.values():
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await process.wait()
        self._forwards.clear()
        if self._scratch:
            self._scratch.cleanup()


def _list(pattern: str) -> str:
    """Words of a shell: a line for each socket that matches."""
    before, _, after = pattern.partition("*")
    return f'for f in {shlex.quote(before)}*{shlex.quote(after)}; do [ -S "$f" ] && echo "$f"; done'


async def _end_of(process: asyncio.subprocess.Process, timeout: float) -> int:
    try:
        return await asyncio.wait_for(process.wait(), timeout)
    except TimeoutError:
        process.kill()
        await process.wait()
        return 124
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
        raise


def _content(fd: int) -> str:
    return os.pread(fd, 1 << 20, 0).decode(errors="replace")


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False
