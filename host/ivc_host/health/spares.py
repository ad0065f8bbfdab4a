"""Which hosts are spare, and why each other one is not. Pure.

The paper's rule (Kobal et al.): without a running virtual machine, and each of processor, memory and
disk below 1 % over half an hour. Ours besides: it answers, it is healthy, and the samples cover enough
of that time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from .contract import Level
from .judge import HostState
from .load import Load


@dataclass(frozen=True)
class Machines:
    """The virtual machines of a host: by the caller, from its hypervisor."""

    running: tuple[str, ...] = ()
    #: Paused, or waiting for a migration: they may be on a spare host.
    standby: tuple[str, ...] = ()
    #: Why they could not be counted; empty when they were.
    fault: str = ""


@dataclass(frozen=True)
class SpareRule:
    limit: float = 1.0
    coverage: float = 0.9
    window: float = 1800.0


@dataclass(frozen=True)
class Verdict:
    host: str
    #: Empty: it is spare.
    reasons: tuple[str, ...]
    load: Load
    machines: Machines

    @property
    def is_spare(self) -> bool:
        return not self.reasons


def choose(
    hosts: Sequence[str],
    states: Mapping[str, HostState],
    loads: Mapping[str, Load],
    machines: Mapping[str, Machines],
    rule: SpareRule,
    reserved: Collection[str] = (),
    twins: Mapping[str, str] | None = None,
) -> list[Verdict]:
    """Spare hosts first, the least loaded of them first; TWINS have the name of a host that is the same."""
    found = []
    for host in hosts:
        load = loads.get(host, Load(host, text="its load was not read"))
        own = machines.get(host, Machines(fault="its machines were not counted"))
        reasons = [
            *(["reserved (guard.toml)"] if host in reserved else []),
            *([f"the same machine as {twins[host]}"] if twins and host in twins else []),
            *_health(states.get(host)),
            *_machines(own),
            *_load(load, rule),
        ]
        found.append(Verdict(host, tuple(reasons), load, own))
    return sorted(found, key=_order)


def _order(verdict: Verdict) -> tuple[bool, float, str]:
    load = verdict.load
    return not verdict.is_spare, max(load.cpu or 0, load.memory or 0, load.io or 0), verdict.host


def _health(state: HostState | None) -> list[str]:
    if state is None or state.level is Level.UNKNOWN:
        return ["its health is unknown"]
    if state.level is not Level.OK:
        worst = next(one for one in state.items if one.state.level is state.level)
        return [f"{state.level}: {worst.why}"]
    # What was watched once and is not now may have gone bad meanwhile.
    return [f"unknown now: {one.key.source}: {one.state.unknown_text}" for one in state.silent[:1]]


def _machines(machines: Machines) -> list[str]:
    if machines.fault:
        return [f"its machines are not known: {machines.fault}"]
    if machines.running:
        shown = ", ".join(machines.running[:3])
        more = f" and {len(machines.running) - 3} more" if len(machines.running) > 3 else ""
        return [f"runs {shown}{more}"]
    return []


def _load(load: Load, rule: SpareRule) -> list[str]:
    values = {"processor": load.cpu, "memory": load.memory, "disk": load.io}
    unknown = [name for name, value in values.items() if value is None]
    reasons = [
        f"{name} {value:.1f} %, the limit is {rule.limit:g} %"
        for name, value in values.items()
        if value is not None and value >= rule.limit
    ]
    if unknown:
        why = f": {load.text}" if load.text else ""
        reasons.append(f"load of {', '.join(unknown)} is not known{why}")
    elif load.coverage < rule.coverage:
        reasons.append(
            f"samples cover {100 * load.coverage:.0f} % of the last {rule.window / 60:.3g} minutes,"
            f" {100 * rule.coverage:.0f} % are needed"
        )
    return reasons
