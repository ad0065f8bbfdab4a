"""Runs one test of fabtests and judges it by the rules of `runfabtests.sh`.

That script itself is not used: it ends every process of the machine whose name begins with `fi_`,
sleeps a second before each client, and shares one port among all. Here a program runs in a session
of its own, and never outlives the test.

The rules: exit codes of 0 on both sides pass; ENODATA (or ENOSYS) on both sides is "not run": the
provider was asked for something that it does not offer; anything else fails.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from .sets import Test

PASSED, FAILED, NOT_RUN = "pass", "FAIL", "not run"
_ADDRESS = "127.0.0.1"
#: How long a server may take until it listens; a provider may first take over a dead one's room.
_PATIENCE = 10.0
#: The same where the provider listens, or not, by means that are not seen from here.
_ASIDE = 1.0
#: A side that has lost its partner is given this long to see it.
_GRACE = 3.0
#: What a unit test says about one of its own cases that it leaves out.
_LEFT_OUT = re.compile(
    r"^Running (\S+) \[.*?\]\.\.\.(?:.*?)(?:skipped because|requires unsupported feature): ?(.*)$",
    re.M,
)


@dataclass(frozen=True)
class Result:
    test: Test
    outcome: str
    seconds: float
    #: In words: exit codes, or what ended it.
    how: str
    said: str

    def left_out(self) -> list[tuple[str, str]]:
        """Cases inside a unit test that it did not run, with the words it gives for it."""
        if not self.test.alone:
            return []
        found = dict.fromkeys((m[1], m[2].strip()) for m in _LEFT_OUT.finditer(self.said))
        return list(found)


class _Program:
    """One running program; what it says goes to a file that has no name."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        self.argv = argv
        self._file: IO[bytes] = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            argv,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=self._file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.late = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def code(self) -> int | None:
        return self._process.poll()

    def wait(self, seconds: float) -> bool:
        """Whether it has ended by itself within this time."""
        try:
            self._process.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            return False
        return True

    def end(self) -> None:
        """End it and whatever it has started."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()

    def finish(self, seconds: float) -> None:
        self.late = not self.wait(seconds)
        self.end()

    def said(self) -> str:
        self._file.seek(0)
        text = self._file.read().decode(errors="replace")
        self._file.close()
        return text

    def how(self) -> str:
        if self.late:
            return "did not end"
        code = self._process.returncode
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"{code} ({errno.errorcode[code]})" if code in errno.errorcode else str(code)


def _listens(port: int) -> bool:
    """Whether anybody of this network namespace listens on the port, without knocking."""
    ending = f":{port:04X}"
    for name in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/net/{name}").read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if words[3] == "0A" and words[1].endswith(ending):
                return True
    return False


def _free_ports(count: int) -> list[int]:
    """Ports that nobody has now; different ones, since all are held until the last is found."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind((_ADDRESS, 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


class Runner:
    """Tests of one fabtests against one provider."""

    def __init__(
        self,
        folder: Path,
        provider: str,
        env: Mapping[str, str],
        timeout: float = 60.0,
        cpus: tuple[int, int] | None = None,
    ) -> None:
        """`cpus`: the processors of server and client."""
        self._folder = folder
        self._provider = provider
        self._env = {**os.environ, **env}
        self._timeout = timeout
        self._pins = [["taskset", "-c", str(cpu)] for cpu in cpus] if cpus else [[], []]

    def run(self, test: Test) -> Result:
        start = time.monotonic()
        outcome, how, said = self._alone(test) if test.alone else self._pair(test)
        return Result(test, outcome, time.monotonic() - start, how, said)

    def _argv(self, test: Test) -> list[str]:
        words = {"SERVER_ADDR": _ADDRESS, "GOOD_ADDR": _ADDRESS}
        program, *rest = (words.get(word, word) for word in test.words)
        return [str(self._folder / program), *rest, "-p", self._provider]

    def _alone(self, test: Test) -> tuple[str, str, str]:
        program = _Program(self._argv(test), self._env)
        try:
            program.finish(self._timeout)
        finally:
            program.end()
        said = f"$ {' '.join(program.argv)}\n{program.said()}"
        code = program.code
        if test.negative:
            outcome = PASSED if code == errno.ENODATA else FAILED
        elif program.late:
            outcome = FAILED
        elif code in (errno.ENODATA, errno.ENOSYS):
            outcome = NOT_RUN
        else:
            outcome = FAILED if code else PASSED
        return outcome, program.how(), f"{said}\n(exit: {program.how()})"

    def _pair(self, test: Test) -> tuple[str, str, str]:
        """Server and client, on ports that nobody else has."""
        port, *own = _free_ports(3)
        words = self._argv(test)
        if test.by_address:
            server_words = [*words, "-s", _ADDRESS, "-B", str(port)]
            client_words = [*words, "-s", _ADDRESS, "-P", str(port), _ADDRESS]
        else:
            server_words = [*words, f"-E={port}", "-B", str(own[0])]
            client_words = [*words, f"-E={port}", "-B", str(own[1]), _ADDRESS]
        server = _Program([*self._pins[0], *server_words], self._env)
        client = None
        try:
            self._await(server, port, _ASIDE if test.by_address else _PATIENCE)
            client = _Program([*self._pins[1], *client_words], self._env)
            self._finish(server, client)
        finally:
            for program in (server, client):
                if program is not None:
                    program.end()
        assert client is not None
        outcome = FAILED
        if not server.late and not client.late:
            codes = {server.code, client.code}
            if codes == {0}:
                outcome = PASSED
            elif codes in ({errno.ENODATA}, {errno.ENOSYS}):
                outcome = NOT_RUN
        how = f"server {server.how()}, client {client.how()}"
        said = "\n".join(
            f"{name}$ {' '.join(one.argv)}\n{one.said()}\n(exit: {one.how()})"
            for name, one in (("server", server), ("client", client))
        )
        return outcome, how, said

    @staticmethod
    def _await(server: _Program, port: int, seconds: float) -> None:
        """Until the server listens or has ended; a provider may have ports of its own: not long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and server.code is None and not _listens(port):
            time.sleep(0.01)

    def _finish(self, server: _Program, client: _Program) -> None:
        """Wait for both; when one has failed, the other is given a little longer only."""
        both = (server, client)
        end = time.monotonic() + self._timeout
        failed = False
        while time.monotonic() < end and None in (server.code, client.code):
            if not failed and any(program.code for program in both):
                failed = True
                end = min(end, time.monotonic() + _GRACE)
            time.sleep(0.005)
        for program in both:
            program.late = program.code is None
