"""`ivc bench gate`: measure every target and judge it.

A target that could not be measured is neither passed nor failed; the reason is kept.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from ..errors import IvcError
from ..lab import lab as labs
from . import apps, fabric, floor, hydra, places, programs
from .compare import Ratio, Sample, Session, Side, ratio
from .places import PATHS, Guests, Host, MpiPath, Place
from .programs import Record
from .progress import Steps
from .targets import TARGETS, Target

#: What the name of a side begins with that is in guests.
_IN_GUESTS = "guests-"
PASSED, FAILED, REPORTED, UNMEASURED = "pass", "FAIL", "reported", "not measured"


@dataclass(frozen=True)
class Verdict:
    target: Target
    outcome: str
    ratio: Ratio | None = None
    reason: str | None = None

    def as_dict(self) -> dict[str, object]:
        target = {**asdict(self.target), "bound_text": self.target.bound_text()}
        ratio = self.ratio.as_dict() if self.ratio else None
        return {"target": target, "outcome": self.outcome, "ratio": ratio, "reason": self.reason}


def exit_code(outcomes: Sequence[str]) -> int:
    """1: a target failed; 2: one could not be measured; 0: all is well."""
    return 1 if FAILED in outcomes else 2 if UNMEASURED in outcomes else 0


class Gate:
    """The sides that targets are made of. Guests are started when the first target needs them, and taken
    down when one needs another number of them: one lab is up at a time."""

    def __init__(
        self,
        cpus: tuple[int, int],
        seconds: float,
        stack: ExitStack,
        steps: Steps,
        hypervisor: str = "uml",
    ) -> None:
        self.cpus = cpus
        self.seconds = seconds
        self.hypervisor = hypervisor
        self.session = Session(lambda: floor.measure(cpus))
        self._stack = stack
        self._steps = steps
        self._region: Path | None = None
        self._host: Host | None = None
        self._guests: Guests | None = None
        self._lab = stack.enter_context(ExitStack())
        self._absent: dict[int, IvcError] = {}

    def host(self) -> Host:
        if self._host is None:
            self._host = Host(self.cpus, self.region())
        return self._host

    def region(self) -> Path:
        if self._region is None:
            self._region = self._stack.enter_context(places.host_region())
        return self._region

    def guests(self, number: int) -> Guests:
        if number in self._absent:  # not tried again for the next target
            raise self._absent[number]
        if self._guests is None or len(self._guests.lab.guests) != number:
            self._guests = None
            self._lab.close()
            try:
                self._guests = self._bring_up(number)
            except IvcError as error:
                self._absent[number] = error
                raise
        return self._guests

    def _bring_up(self, number: int) -> Guests:
        self._steps.step(f"bringing up {number} guests")
        lab = labs.up(
            f"gate-{os.getpid()}",
            number,
            self.hypervisor,
            region_size=places.REGION_SIZE,
            progress=self._steps,
        )
        return Guests(self._lab.enter_context(lab), self.cpus)

    def side(self, name: str, targets: Sequence[Target]) -> Side:
        """A side by its name in the targets' table, measuring what these targets look at."""
        words = ["--test", ",".join(dict.fromkeys(t.test for t in targets))]
        words += ["--sizes", ",".join(dict.fromkeys(str(t.bytes) for t in targets))]
        words += ["--seconds", str(self.seconds)]
        if name == "floor":
            return lambda: self._floor(targets)
        ranks, program = targets[0].ranks, targets[0].program
        if name in hydra.PATHS:
            return self._hydra(hydra.PATHS[name], words, ranks)
        if name in fabric.PATHS:
            return self._fabric(fabric.PATHS[name], targets)
        key = name.removeprefix(_IN_GUESTS)
        place = self.host() if key == name else self.guests(ranks)
        if key == "libivc":
            return lambda: places.bench_libivc(place, words)
        path = places.polling() if key == "ivc-polling" else PATHS[key]
        if program:
            return self._app(apps.APPS[program], place, path, ranks)
        return lambda: places.bench_mpi(place, path, words, ranks)

    def _app(self, app: apps.App, place: Place, path: MpiPath, ranks: int) -> Side:
        apps.require([app])  # what is missing is told before the first round
        return lambda: apps.run(app, place, path, ranks)

    def _hydra(self, path: hydra.HydraPath, words: Sequence[str], ranks: int) -> Side:
        self._steps.step(f"looking for {path.package}, installing it if need be")
        hydra.environment(path, self.region())  # what is missing is told before the first round
        return lambda: hydra.bench(path, self.cpus, self.region(), words, ranks)

    def _fabric(self, path: fabric.FabricPath, targets: Sequence[Target]) -> Side:
        side = fabric.Fabric(path, self.cpus, self.region())
        wanted = list(dict.fromkeys((t.test, t.bytes) for t in targets))
        return lambda: side.bench(wanted, self.seconds)

    def _floor(self, targets: Sequence[Target]) -> list[Record]:
        tests = dict.fromkeys(t.reference_test for t in targets if t.reference_test)
        sizes = [str(t.bytes) for t in targets if t.reference_test == "pipeline"]
        argv = [str(programs.find("bench_floor")), "--test", ",".join(tests)]
        argv += ["--cpus", f"{self.cpus[0]},{self.cpus[1]}", "--seconds", str(self.seconds)]
        if sizes:
            argv += ["--sizes", ",".join(sizes)]
        return programs.checked(programs.run(argv, timeout=60 + 2 * self.seconds * len(targets)), "bench_floor")

    def judge(self, targets: Sequence[Target], rounds: int) -> list[Verdict]:
        """Measure targets that share both sides and what runs there."""
        ours, reference, program = targets[0].ours, targets[0].reference, targets[0].program
        try:
            sides = {name: self.side(name, targets) for name in (ours, reference)}
            samples = self.session.alternate(
                sides,
                rounds,
                lambda side, number: self._steps.step(f"round {number}: {side}"),
            )
            if program:
                apps.check(apps.APPS[program], samples)
        except IvcError as error:
            detail = f" ({error.detail.splitlines()[-1].strip()})" if error.detail else ""
            return [Verdict(one, UNMEASURED, reason=f"{error}{detail}") for one in targets]
        return [_verdict(target, samples) for target in targets]


def _verdict(target: Target, samples: Sequence[Sample]) -> Verdict:
    found = ratio(
        samples,
        target.ours,
        target.reference,
        target.test,
        target.bytes,
        target.metric,
        target.reference_test,
        target.reference_bytes,
    )
    if found is None:
        return Verdict(
            target,
            UNMEASURED,
            reason="in no round were both sides measured in one state of the machine; try again",
        )
    if target.reported_only:
        return Verdict(target, REPORTED, found)
    return Verdict(target, PASSED if target.holds(found) else FAILED, found)


def groups(targets: Sequence[Target] = TARGETS) -> list[list[Target]]:
    """Targets that share both sides, and what runs there, are measured together; but for those alone."""
    found: dict[tuple[object, ...], list[Target]] = {}
    for target in targets:
        key = (target.ours, target.reference, target.ranks, target.program, target.alone and target.key)
        found.setdefault(key, []).append(target)
    return list(found.values())
