"""What makes the guard look at once: events of hypervisors, programs that ask for it."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest

from ivc_host import paths
from ivc_host.guard.engine import Guard, Snapshot
from ivc_host.guard.journal import Journal
from ivc_host.guard.plan import MachineView, Rules
from ivc_host.guard.service import Listening, Service
from ivc_host.guard.watch import watch
from ivc_host.hypervisor.contract import Event, Hypervisor
from ivc_host.hypervisor.faults import GoneError
from ivc_host.hypervisor.host import Host
from ivc_host.hypervisor.reach import Reach


class Stream:
    """A hypervisor whose events are a script: an event, or a fault that ends a stream."""

    def __init__(self, name: str = "h1") -> None:
        self.host = SimpleNamespace(name=name)
        self.script: asyncio.Queue[Event | Exception | None] = asyncio.Queue()
        self.opened = 0

    async def events(self) -> AsyncGenerator[Event, None]:
        self.opened += 1
        while (one := await self.script.get()) is not None:
            if isinstance(one, Exception):
                raise one
            yield one


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.01)


def test_a_stream_that_breaks_is_said_once_and_asked_for_again() -> None:
    one, said, news = Stream(), list[str](), list[Any]()

    async def main() -> None:
        hosts = [cast(Hypervisor, one)]
        task = asyncio.create_task(
            watch(hosts, lambda host, event: news.append((host, event)), said.append, 0.01, 60)
        )
        appeared = Event("g1", "appeared")
        one.script.put_nowait(appeared)
        await until(lambda: news == [("h1", appeared)])
        for fault in (GoneError("libvirt has ended"), GoneError("no socket"), None, OSError("x")):
            one.script.put_nowait(fault)
        await until(lambda: one.opened == 5)
        assert said == ["h1 tells of no events (libvirt has ended): what happens there is seen at the"
                        " next step"]  # fmt: skip
        assert news[1:] == [("h1", None)]
        one.script.put_nowait(appeared)
        await until(lambda: len(news) == 4)
        assert said[1:] == ["h1 tells of events again"]
        one.script.put_nowait(ValueError("of a plug-in"))
        await until(lambda: len(said) == 3)
        assert "a defect of its hypervisor's class: ValueError: of a plug-in" in said[2]
        task.cancel()

    asyncio.run(main())


class World:
    """A guard that sees nothing, and counts how often it looks; its own time is far away."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.looks = 0
        self.stream = Stream()

    async def look(self, moving: Mapping[str, MachineView]) -> Snapshot:
        self.looks += 1
        return Snapshot((), ())

    def run(self, test: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            with Journal(self.folder / "journal", 0.0) as log:
                guard = Guard(log, cast(Any, None), Rules())
                at = Listening(self.folder / "socket", "127.0.0.1", 0)
                those = [cast(Hypervisor, self.stream)]
                service = Service(guard, self.look, 3600, at, lambda text: None, those)
                task = asyncio.create_task(service.run())
                await until(lambda: self.looks == 1)
                await test()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task

        asyncio.run(main())


def test_an_event_is_a_step(tmp_path: Path) -> None:
    world = World(tmp_path)

    async def test() -> None:
        for n in (2, 3):
            world.stream.script.put_nowait(Event("g1", "gone"))
            await until(lambda n=n: world.looks == n)

    world.run(test)


def test_a_look_that_is_asked_for(tmp_path: Path) -> None:
    world = World(tmp_path)

    async def test() -> None:
        connector = aiohttp.UnixConnector(str(tmp_path / "socket"))
        async with aiohttp.ClientSession(connector=connector) as session:
            for _ in range(50):  # at most one step a second comes of that
                async with session.post("http://guard/look") as answer:
                    assert answer.status == 200
        await until(lambda: world.looks == 2)
        await asyncio.sleep(0.5)
        assert world.looks == 2

    world.run(test)


def test_sockets_that_come_and_go(tmp_path: Path) -> None:
    """Of a host by one command, which tells when it has ended."""

    async def main() -> None:
        at = Reach(Host("h1", "qemu", None))
        server = await asyncio.start_unix_server(lambda r, w: None, tmp_path / "g1.qmp")
        watched = at.watch_sockets(f"{tmp_path}/*.qmp", 0.05)
        assert await anext(watched) == [str(tmp_path / "g1.qmp")]
        server.close()
        (tmp_path / "g1.qmp").unlink(missing_ok=True)
        async with asyncio.timeout(10):
            while await anext(watched):
                pass
        await watched.aclose()
        gone = Reach(Host("h1", "qemu", None, ssh=("-p", "1", "nobody@127.0.0.1")))
        with pytest.raises(GoneError, match="sh on h1 has ended, or the way there is cut"):
            await anext(gone.watch_sockets("/run/*.qmp", 0.05))

    asyncio.run(main())


# ---- the trigger of rasdaemon

TRIGGER = paths.project() / "packaging" / "ivc-rasdaemon"
CORRECTED = {"TYPE": "Corrected", "MESSAGE": "memory read error", "LABEL": "DIMM_A1"}
UNCORRECTED = {**CORRECTED, "TYPE": "Uncorrected", "TIMESTAMP": "2026-11-29 15:00:00 +0000"}
FAILURE = {"PFN": "0x1234", "PAGE_TYPE": "dirty LRU page", "ACTION_RESULT": "Recovered"}
AER = {"ERROR_TYPE": "Uncorrected (Non-Fatal)", "DEV_NAME": "0000:00:01.0"}


@pytest.mark.parametrize(
    ("event", "mark"),
    [
        (CORRECTED, None),
        (AER, None),
        (UNCORRECTED, "rasdaemon: Uncorrected error of memory: memory read error DIMM_A1 at 2026-"),
        (FAILURE, "rasdaemon: memory failure at page 0x1234: dirty LRU page Recovered at "),
    ],
)
def test_a_trigger_of_rasdaemon(tmp_path: Path, event: dict[str, str], mark: str | None) -> None:
    """Run as rasdaemon runs it: the event in the environment, and PATH."""
    world, file = World(tmp_path), tmp_path / "etc" / "failing"

    async def trigger(port: int) -> int:
        env = {"PATH": os.environ["PATH"], "IVC_MARK": str(file), **event,
               "IVC_GUARD": f"http://127.0.0.1:{port}"}  # fmt: skip
        done = await asyncio.to_thread(subprocess.run, [TRIGGER], env=env)
        return done.returncode

    async def test() -> None:
        assert await trigger(await _port()) == 0
        await until(lambda: world.looks == 2)
        assert await trigger(1) != 0

    world.run(test)
    assert file.read_text().startswith(mark) if mark else not file.exists()


async def _port() -> int:
    """Where this process listens for HTTP."""
    inodes = {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
              if os.path.lexists(f"/proc/self/fd/{fd}")}  # fmt: skip
    for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == "0A" and f"socket:[{words[9]}]" in inodes:
            return int(words[1].rpartition(":")[2], 16)
    raise AssertionError("it does not listen")
