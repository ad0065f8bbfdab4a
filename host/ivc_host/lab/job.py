"""A program that runs in a lab while other things happen, such as a guest's move.

What it prints goes to files of this process, so it never waits for somebody to read.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from types import TracebackType
from typing import IO

from ..errors import LabError


class Job:
    """As a context manager it ends the host's side; what runs in the guests ends with the lab."""

    def __init__(self, command: Sequence[str], label: str) -> None:
        self.label = label
        self.started = time.time()
        self._out = tempfile.TemporaryFile()
        self._err = tempfile.TemporaryFile()
        # A session of its own: Ctrl-C is for this command to handle, not for ssh to report.
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._err,
            start_new_session=True,
        )

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del kind, error, trace
        self._child.kill()
        self._child.wait()
        self._out.close()
        self._err.close()

    def running(self) -> bool:
        return self._child.poll() is None

    def output(self) -> str:
        """What it has printed so far."""
        return _content(self._out)

    def wait_for(self, text: str, timeout: float) -> None:
        """Return once it has printed that; raises LabError when it ends before, or takes too long."""
        end = time.monotonic() + timeout
        while text not in self.output():
            if not self.running() or time.monotonic() > end:
                how = "takes too long" if self.running() else f"ended ({self._child.returncode})"
                raise LabError(f"{self.label} {how} before it began", detail=self._evidence())
            time.sleep(0.1)

    def check_running(self) -> None:
        """Raise LabError, with what it said, when it has ended."""
        if not self.running():
            raise LabError(
                f"{self.label} has ended ({self._child.returncode})", detail=self._evidence()
            )

    def finish(self, timeout: float) -> subprocess.CompletedProcess[str]:
        """Wait for its end; whatever its exit code."""
        try:
            code = self._child.wait(timeout)
        except subprocess.TimeoutExpired:
            raise LabError(
                f"{self.label} has not ended after {timeout:.0f} s", detail=self._evidence()
            ) from None
        return subprocess.CompletedProcess([self.label], code, self.output(), _content(self._err))

    def _evidence(self) -> str:
        lines = (self.output() + _content(self._err)).splitlines()
        return "\n".join(lines[-15:])


def _content(file: IO[bytes]) -> str:
    # Not by seek and read: the writer shares this file's position.
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), size, 0).decode(errors="replace")
