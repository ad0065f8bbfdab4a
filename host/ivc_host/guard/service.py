"""The guard as a service: steps in time, what others may ask of it, and what Prometheus reads.

People ask by a socket that only its owner can open (`ivc guard status` and its like); Prometheus and
load balancers by HTTP, where nothing can be asked that moves a machine which would not move anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ..errors import IvcError
from ..health.contract import Level
from ..hypervisor.contract import Event, Hypervisor
from . import nodes
from .engine import Guard, Outcome, Snapshot
from .plan import MachineView, Plan
from .watch import watch

#: Without a step for so many intervals it is not well.
_LATE = 3
#: Between two steps, at least.
_REST_SECONDS = 1.0
_LEVELS = {Level.OK: 0, Level.WARNING: 1, Level.FAILING: 2, Level.UNKNOWN: -1}


class ServiceError(IvcError):
    """The guard's service cannot be started, reached, or go on."""


@dataclass(frozen=True)
class Listening:
    """Where the service listens."""

    socket: Path = Path("/run/ivc-guard.sock")
    #: Of HTTP; empty: not at all.
    host: str = "127.0.0.1"
    port: int = 9474


#: Told which machines are being moved.
Look = Callable[[Mapping[str, MachineView]], Awaitable[Snapshot]]


class Service:
    def __init__(
        self,
        guard: Guard,
        look: Look,
        interval: float,
        listening: Listening,
        say: Callable[[str], None] = print,
        those: Sequence[Hypervisor] = (),
    ) -> None:
        self.guard = guard
        self._those = those
        self._look = look
        self._interval = interval
        self._listening = listening
        self._say = say
        self._snapshot = Snapshot((), ())
        self._stepped = time.monotonic()
        self._step_seconds = 0.0
        self._fault = ""
        self._soon = asyncio.Event()
        self._registry = CollectorRegistry()
        self._registry.register(_Metrics(self))

    # ---- steps

    async def run(self) -> None:
        """Until it is cancelled, when all moves that can be taken back are."""
        async with self._served(), self._watched():
            try:
                while True:
                    self._soon.clear()  # what happens from here on may be missed by this step
                    await self.step()
                    await self._rest()
            finally:
                await self.guard.give_up("the guard ends")

    async def _rest(self) -> None:
        """Until the next step is due. However often one is asked for, half of the time is free."""
        rest = min(max(_REST_SECONDS, self._step_seconds), self._interval)
        await asyncio.sleep(rest)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._soon.wait(), self._interval - rest)

    @contextlib.asynccontextmanager
    async def _watched(self) -> AsyncIterator[None]:
        task = asyncio.create_task(watch(self._those, self._news, self._say))
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def _news(self, host: str, event: Event | None) -> None:
        """A step soon, unless it is of a move of ours."""
        ours = {one.move.machine for one in self.guard.under_way()}
        if event is None or event.machine not in ours:
            self._soon.set()

    async def step(self) -> Plan:
        """What is seen may be nothing, when nobody answers; then nothing is begun."""
        begin = time.monotonic()
        try:
            self._snapshot = await self._look(self.guard.moving())
            self._fault = ""
        except IvcError as fault:
            if str(fault) != self._fault:
                self._say(f"looking failed: {fault}")
            self._fault = str(fault)
            return self.guard.plan
        plan = await self.guard.step(self._snapshot)
        self._stepped = time.monotonic()
        self._step_seconds = self._stepped - begin
        return plan

    def is_well(self) -> bool:
        return time.monotonic() - self._stepped < _LATE * self._interval + self._step_seconds

    # ---- listening

    @contextlib.asynccontextmanager
    async def _served(self) -> AsyncIterator[None]:
        own, open_to_others = web.AppRunner(self._own()), web.AppRunner(self._others())
        at = self._listening
        try:
            await own.setup()
            await open_to_others.setup()
            at.socket.parent.mkdir(parents=True, exist_ok=True)
            at.socket.unlink(missing_ok=True)  # the journal's lock says that it is nobody's
            before = os.umask(0o077)
            try:
                await web.UnixSite(own, str(at.socket)).start()
            finally:
                os.umask(before)
            if at.host:
                await web.TCPSite(open_to_others, at.host, at.port).start()
        except OSError as fault:
            await own.cleanup()
            await open_to_others.cleanup()
            raise ServiceError(
                f"cannot listen on {at.socket} and {at.host}:{at.port}: {fault.strerror or fault}",
                hint="see 'socket' and 'listen' of guard.toml",
            ) from None
        try:
            yield
        finally:
            await own.cleanup()
            await open_to_others.cleanup()
            at.socket.unlink(missing_ok=True)

    def _own(self) -> web.Application:
        app = web.Application()
        app.add_routes(
            [
                web.get("/status", self._get_status),
                web.get("/plan", self._get_plan),
                web.post("/look", self._post_look),
                web.post("/evacuate/{host}", self._post_evacuate),
                web.post("/stay/{host}", self._post_stay),
                web.post("/retry/{machine}", self._post_retry),
            ]
        )
        return app

    def _others(self) -> web.Application:
        app = web.Application()
        app.add_routes(
            [
                web.get("/metrics", self._get_metrics),
                web.get("/healthz", self._get_healthz),
                web.get("/nodes", self._get_nodes),
                web.post("/look", self._post_look),
            ]
        )
        return app

    async def _get_status(self, request: web.Request) -> web.Response:
        return web.json_response(self.status())

    async def _get_plan(self, request: web.Request) -> web.Response:
        """What a step would do now, of what was seen last."""
        return web.json_response(plan_of(self.guard.look_ahead(self._snapshot, time.time())))

    async def _post_look(self, request: web.Request) -> web.Response:
        """A step soon; what it does is what it would do in its time."""
        self._soon.set()
        return web.Response(text="ok\n")

    async def _get_nodes(self, request: web.Request) -> web.Response:
        """For a scheduler's health check, of what was seen last."""
        if not self.is_well():
            raise web.HTTPServiceUnavailable(text=f"no step has ended for a while: {self._fault}\n")
        return web.Response(text=nodes.text(self.guard.nodes))

    async def _post_evacuate(self, request: web.Request) -> web.Response:
        host = self._host(request)
        self.guard.evacuate(host, request.query.get("by", "a person"))
        self._soon.set()
        machines = [m.name for m in self._snapshot.machines if m.host == host]
        unseen = next((one.unseen for one in self._snapshot.hosts if one.name == host), "")
        if unseen:
            unseen = f"which machines it has is not known: {unseen}"
        return web.json_response({"host": host, "machines": machines, "unseen": unseen})

    async def _post_stay(self, request: web.Request) -> web.Response:
        host = self._host(request)
        cancelled = self.guard.stay(host, request.query.get("by", "a person"))
        self._soon.set()
        return web.json_response({"host": host, "cancelled": cancelled})

    async def _post_retry(self, request: web.Request) -> web.Response:
        machine = request.match_info["machine"]
        if machine not in self.guard.journal.known.tried:
            raise web.HTTPNotFound(text=f"no move of {machine} has failed")
        self.guard.retry(machine)
        self._soon.set()
        return web.json_response({"machine": machine})

    def _host(self, request: web.Request) -> str:
        name = request.match_info["host"]
        known = [host.name for host in self._snapshot.hosts]
        if name not in known:
            raise web.HTTPNotFound(text=f"there is no host {name}; there are {', '.join(known)}")
        return name

    async def _get_metrics(self, request: web.Request) -> web.Response:
        body = generate_latest(self._registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _get_healthz(self, request: web.Request) -> web.Response:
        if self.is_well():
            return web.Response(text="ok\n")
        why = self._fault or "it is in the middle of a step"
        raise web.HTTPServiceUnavailable(text=f"no step has ended for a while: {why}\n")

    # ---- what is told

    def status(self) -> dict[str, Any]:
        known = self.guard.journal.known
        return {
            "well": self.is_well(),
            "fault": self._fault,
            "stepped_at": self.guard.stepped_at,
            "hosts": [_host_of(host, known.evacuate) for host in self._snapshot.hosts],
            "machines": Counter(machine.host for machine in self._snapshot.machines),
            "under_way": [
                {**asdict(one.move), "phase": one.phase, "begun": one.begun, "cancelled": one.cancelled}
                for one in self.guard.under_way()
            ],
            "waiting": dict(self.guard.plan.waiting),
            "alarms": [{"kind": kind, "subject": subject, "text": text}
                       for (kind, subject), text in known.alarms.items()],
            "outcomes": known.outcomes,
        }  # fmt: skip

    def metrics(self) -> Iterator[Metric]:
        known, snapshot = self.guard.journal.known, self._snapshot
        level = GaugeMetricFamily(
            "ivc_guard_host_level", "Health: 0 ok, 1 warning, 2 failing, -1 unknown.", labels=["host"]
        )
        spare = GaugeMetricFamily("ivc_guard_host_spare", "1: may take machines.", labels=["host"])
        machines = GaugeMetricFamily("ivc_guard_machines", "Machines seen.", labels=["host"])
        count = Counter(machine.host for machine in snapshot.machines)
        for host in snapshot.hosts:
            level.add_metric([host.name], _LEVELS[host.level])
            spare.add_metric([host.name], float(not host.not_spare and host.level is Level.OK))
            machines.add_metric([host.name], count[host.name])
        yield from (level, spare, machines)
        moves = CounterMetricFamily("ivc_guard_moves", "Moves that have ended.", labels=["outcome"])
        for outcome in Outcome:
            if outcome is not Outcome.UNDECIDED:
                moves.add_metric([outcome.value], known.outcomes.get(outcome.value, 0))
        yield moves
        yield _gauge("moves_under_way", "Moves that have begun and not ended.", len(known.open))
        yield _gauge("moves_waiting", "Machines that wait to be moved.", len(self.guard.plan.waiting))
        alarms = GaugeMetricFamily("ivc_guard_alarms", "Alarms that are on.", labels=["kind"])
        for kind, n in sorted(Counter(kind for kind, _ in known.alarms).items()):
            alarms.add_metric([kind], n)
        yield alarms
        yield _gauge("last_step_timestamp_seconds", "When a step ended.", self.guard.stepped_at)
        yield _gauge("step_seconds", "What the last step took.", self._step_seconds)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"ivc_guard_{name}", text, value=value)


class _Metrics:
    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterable[Metric]:
        return self._service.metrics()


def _host_of(host: Any, evacuate: dict[str, str]) -> dict[str, Any]:
    return {
        "name": host.name,
        "level": host.level.value,
        "why": host.why,
        "evacuate": evacuate.get(host.name),
        "spare": not host.not_spare and host.level is Level.OK,
        "not_spare": list(host.not_spare),
        "load": host.load,
    }


def plan_of(plan: Plan) -> dict[str, Any]:
    """A plan for machines to read."""
    return {
        "moves": [asdict(move) for move in plan.moves],
        "waiting": dict(plan.waiting),
        "alarms": [asdict(alarm) for alarm in plan.alarms],
        "considered": [
            {"machines": list(group), "passed": [asdict(one) for one in passed]}
            for group, passed in plan.considered.items()
        ],
    }
