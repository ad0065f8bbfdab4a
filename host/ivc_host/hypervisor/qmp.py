"""A connection to one QEMU: commands, events, faults in words (QMP, by the qemu.qmp library)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from qemu.qmp import (
    ConnectError,
    EventListener,
    ExecInterruptedError,
    ExecuteError,
    QMPClient,
    QMPError,
    Runstate,
    StateError,
)

from .faults import GoneError, MachineError, SilentError

#: A monitor serves one client at a time: whoever comes second is not greeted.
_GREETING_SECONDS = 5.0
_ATTEMPTS = 5
#: A command that takes longer has hung; making a large memory ready takes seconds.
_COMMAND_SECONDS = 60.0

# What goes wrong is raised; the library would say it a second time, as a traceback.
logging.getLogger("qemu.qmp").addHandler(logging.NullHandler())
logging.getLogger("qemu.qmp").propagate = False


class Monitor:
    """An open connection. `what` names the machine and its host in every fault."""

    def __init__(self, client: QMPClient, what: str) -> None:
        self._client = client
        self.what = what

    @classmethod
    async def open(cls, path: str, what: str) -> Monitor | None:
        """Connect; None when no QEMU listens there."""
        for attempt in range(_ATTEMPTS):
            client = QMPClient(what)
            try:
                await asyncio.wait_for(client.connect(path), _GREETING_SECONDS)
                return cls(client, what)
            except TimeoutError:
                raise MachineError(
                    f"{what}: its QMP socket {path} does not answer",
                    hint="it serves one program at a time: end the other one",
                ) from None
            except ConnectError as fault:
                if isinstance(fault.exc, (FileNotFoundError, ConnectionRefusedError)):
                    return None
                if isinstance(fault.exc, PermissionError):
                    raise MachineError(
                        f"{what}: no permission for its QMP socket {path}", hint="use sudo"
                    ) from None
                if attempt == _ATTEMPTS - 1:
                    raise MachineError(f"{what}: no QMP on {path}: {fault}") from None
            # It hung up: it is ending, or has not yet noticed that its last client has gone.
            await asyncio.sleep(0.1)
        return None

    async def do(
        self,
        command: str,
        arguments: Mapping[str, object] | None = None,
        timeout: float = _COMMAND_SECONDS,
    ) -> Any:
        """Run a command and return its answer."""
        try:
            return await asyncio.wait_for(self._client.execute(command, arguments), timeout)
        except ExecuteError as refusal:
            raise MachineError(f"{self.what}: {refusal}") from None
        except TimeoutError:
            raise SilentError(
                f"{self.what}: its hypervisor has not answered for {timeout:.0f} s"
            ) from None
        except (ExecInterruptedError, StateError, QMPError, EOFError, OSError):
            raise GoneError(f"{self.what}: its hypervisor has ended") from None

    @asynccontextmanager
    async def events(self, *names: str) -> AsyncIterator[EventListener]:
        """Collect the events of these names, from now on."""
        with self._client.listener(names) as listener:
            yield listener

    async def event(self, listener: EventListener, timeout: float) -> Mapping[str, Any] | None:
        """The next event; None when none came in time. GoneError when none can come any more."""
        try:
            # A listener is not told that the connection has ended.
            return await asyncio.wait_for(listener.get(), timeout)
        except TimeoutError:
            if self.closed:
                raise GoneError(f"{self.what}: its hypervisor has ended") from None
            return None

    @property
    def closed(self) -> bool:
        return self._client.runstate is not Runstate.RUNNING

    async def ended(self, timeout: float) -> bool:
        """Wait until the other side has closed the connection."""
        end = time.monotonic() + timeout
        while not self.closed and time.monotonic() < end:
            await asyncio.sleep(0.01)
        return self.closed

    async def close(self) -> None:
        """Fetches also what the library would else report as never fetched."""
        try:
            await self._client.disconnect()
        except (QMPError, EOFError, OSError):
            pass
