"""The part `model`: Spin checks the protocol of migration (src/endpoint/path.pml).

Each configuration is explored whole, and each fault that can be built in must be found: a model
that cannot fail says nothing.  The verifier is compiled once for each number of endpoints; what
happens in a run is told by its environment.  IVC_MODEL=large adds configurations that take minutes.
"""

from __future__ import annotations

import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from .. import paths
from .part import Run, SkipPart

_MODEL = "src/endpoint/path.pml"
_FAULTS = re.compile(r"^#define (\w+) +(\d+)$", re.MULTILINE)
_ERRORS = re.compile(r"errors: (\d+)")
_STATES = re.compile(r"(\d+) states, stored")
_VIOLATED = re.compile(r"^pan:\d+: (.*) \(at depth \d+\)$", re.MULTILINE)
#: What the verifier says when it has not seen everything.
_INCOMPLETE = ("max search depth too small", "Search not completed", "out of memory")

_DEPTH = 100_000
_AT_ONCE = 2


@dataclass(frozen=True)
class Verifier:
    """What is compiled."""

    defines: tuple[str, ...] = ()
    #: Looks for cycles instead: without one, every run ends, and its end is checked.
    cycles: bool = False


TWO = Verifier()
THREE = Verifier(("N=3",))
LOSS = Verifier(("LOSS",))
CYCLES = Verifier(cycles=True)

#: Settings of path.pml: so many for endpoint 0, 1, 2.
Settings = dict[str, int]


def _messages(*each: int) -> Settings:
    return {f"MESSAGES_{endpoint}": n for endpoint, n in enumerate(each)}


def _orders(*each: int) -> Settings:
    return {f"ORDERS_{endpoint}": n for endpoint, n in enumerate(each)}


def _losses(*each: int) -> Settings:
    return {f"LOSSES_{endpoint}": n for endpoint, n in enumerate(each)}


@dataclass(frozen=True)
class Configuration:
    name: str
    verifier: Verifier
    settings: Settings
    large: bool = False

    @property
    def seconds(self) -> int:
        return 3600 if self.large else 120

    @property
    def megabytes(self) -> int:
        return 12000 if self.large else 900


@dataclass(frozen=True)
class Mutation:
    """A fault, and where it is looked for."""

    name: str
    verifier: Verifier
    settings: Settings


CONFIGURATIONS = (
    Configuration("no cycles", CYCLES, _messages(1, 0)),
    Configuration("one guest moves", TWO, _messages(2, 1)),
    Configuration("a stranger, which computes", TWO,
                  {"STRANGER": 1, "COMPUTES": 1, **_messages(1, 1)}),
    Configuration("from another host", TWO, {"START_1": 2, **_messages(2, 2)}),
    Configuration("a device pulled", LOSS, {**_orders(0), **_messages(2, 1)}),
    Configuration("two devices pulled", LOSS,
                  {**_orders(0), **_losses(1, 1), **_messages(1, 0)}, large=True),
    Configuration("three, one moves to another", THREE, {"START_1": 2, **_messages(1, 0)}),
    Configuration("one guest moves, two messages each", TWO, _messages(2, 2), large=True),
    Configuration("both move", TWO, {**_messages(1, 0), **_orders(1, 1)}, large=True),
    Configuration("one guest moves twice", TWO, {**_messages(1, 1), **_orders(2)}, large=True),
    Configuration("a device pulled, two messages each", LOSS, {**_orders(0), **_messages(2, 2)},
                  large=True),
    Configuration("a device pulled, in a move or not", LOSS, _messages(1, 1), large=True),
    Configuration("three, one moves", THREE, _messages(1, 0), large=True),
)  # fmt: skip

MUTATIONS = (
    *(
        Mutation(name, TWO, {})
        for name in (
            "FROM_HEAD_MINUS_1",
            "FROM_HEAD_PLUS_1",
            "READ_BEFORE_AFTER",
            "READ_WHEN_SUSPENDED",
            "NEW_BEFORE_BACKLOG",
            "RING_BEFORE_BACKLOG",
            "CLOSE_EARLY",
            "CLOSE_CLEARS_LINE",
            "ACT_ON_ORDER",
            "NO_ANSWER",
            "ANSWER_WHILE_ORDERED",
            "ANSWER_TWICE",
            "ATTACH_AGAIN",
        )
    ),
    Mutation("JOIN_UNCHECKED", TWO, {**_messages(1, 1), **_orders(2)}),
    Mutation("SUSPENDED_IS_NO_READER", TWO, _orders(2)),
    Mutation("LOST_UNREAD", LOSS, _orders(0)),
    Mutation("UNCERTAIN_AGAIN", LOSS, _orders(0)),
    Mutation("LATE_LOST_FORGOTTEN", LOSS, {}),
    Mutation("LOST_OUT_OF_TURN", LOSS, _messages(1, 1)),
    Mutation("COPY_LATE", LOSS, {}),
)


@dataclass(frozen=True)
class Answer:
    errors: int
    states: int
    complete: bool
    said: str

    @property
    def violated(self) -> str:
        found = _VIOLATED.search(self.said)
        return found[1] if found else ""


def faults(text: str) -> dict[str, int]:
    """The faults that can be built into the model, and their numbers."""
    start, end = text.index("/* The faults:"), text.index("#define IS(fault)")
    return {name: int(number) for name, number in _FAULTS.findall(text[start:end])}


def understand(said: str) -> Answer:
    """What a verifier has said at its end; incomplete when it was ended before."""
    errors, states = _ERRORS.search(said), _STATES.search(said)
    if errors is None or states is None:
        return Answer(0, 0, False, said)
    complete = not any(text in said for text in _INCOMPLETE)
    return Answer(int(errors[1]), int(states[1]), complete, said)


class Model:
    """The verifiers of one run of the part, in a folder of its own."""

    def __init__(self, run: Run, folder: Path, megabytes: int) -> None:
        self.run = run
        self._folder = folder
        self._megabytes = megabytes
        self.source = paths.project() / _MODEL
        self.faults = faults(self.source.read_text())

    def _home(self, verifier: Verifier) -> Path:
        return self._folder / "-".join((*verifier.defines, "cycles" if verifier.cycles else "all"))

    def compile(self, verifier: Verifier) -> None:
        """Errors are counted by whoever then runs it."""
        home = self._home(verifier)
        home.mkdir()
        kind = "NP" if verifier.cycles else "SAFETY"
        # Not optimized: compiling would take longer than running.
        for argv in (
            ["spin", "-a", *(f"-D{name}" for name in verifier.defines), str(self.source)],
            ["gcc", "-O0", "-w", f"-D{kind}", "-DCOLLAPSE",
             f"-DMEMLIM={self._megabytes}", "-o", "pan", "pan.c"],
        ):  # fmt: skip
            if self.run.program(argv, cwd=home).returncode != 0:
                return

    def verify(self, name: str, verifier: Verifier, settings: Settings, seconds: int) -> Answer:
        home = self._home(verifier)
        if not (home / "pan").exists():
            return Answer(0, 0, False, f"spin or gcc refuses {_MODEL}")
        folder = home / name.replace(" ", "-")
        folder.mkdir()
        argv = ["../pan", f"-m{_DEPTH}", *(["-l"] if verifier.cycles else [])]
        env = {key: str(value) for key, value in settings.items()}
        self.run.log(f"{name}: {' '.join(f'{key}={value}' for key, value in env.items())}")
        return understand(self.run.program(argv, env=env, timeout=seconds, cwd=folder).stdout)

    def check(self, case: Configuration) -> None:
        answer = self.verify(case.name, case.verifier, case.settings, case.seconds)
        if answer.errors:
            self.run.failed(f"{case.name}: {answer.violated}", answer.said)
        elif not answer.complete:
            self.run.failed(f"{case.name}: not explored whole (in {case.seconds} s and "
                            f"{self._megabytes} MB)", answer.said)  # fmt: skip
        else:
            self.run.passed(f"{case.name}: {answer.states} states")

    def check_mutation(self, mutation: Mutation) -> None:
        number = self.faults.get(mutation.name)
        if number is None:
            self.run.failed(f"fault {mutation.name}: {_MODEL} has none of that name")
            return
        settings = {**mutation.settings, "MUTATION": number}
        answer = self.verify(mutation.name, mutation.verifier, settings, 120)
        if answer.errors and answer.violated.startswith("assertion violated"):
            self.run.passed(f"fault {mutation.name}: found, {answer.violated}")
        else:
            self.run.failed(f"fault {mutation.name}: not found", answer.said)

    def check_all_tried(self) -> None:
        untried = set(self.faults) - {mutation.name for mutation in MUTATIONS}
        self.run.check(
            f"each fault of {_MODEL} is tried", not untried, f"not: {', '.join(sorted(untried))}"
        )


def model(run: Run) -> None:
    for tool in ("spin", "gcc"):
        if not shutil.which(tool):
            raise SkipPart(f"{tool} is not installed (./run setup --for test)")
    large = os.environ.get("IVC_MODEL") == "large"
    cases = [case for case in CONFIGURATIONS if large or not case.large]
    with (
        TemporaryDirectory(prefix="ivc-model-") as folder,
        ThreadPoolExecutor(_AT_ONCE) as pool,
    ):
        model = Model(run, Path(folder), max(case.megabytes for case in cases))
        model.check_all_tried()
        list(pool.map(model.compile, (TWO, LOSS, THREE, CYCLES)))
        list(pool.map(model.check, cases))
        list(pool.map(model.check_mutation, MUTATIONS))
