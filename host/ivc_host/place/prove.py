"""The proof of a placement: the user's command in turns under the present one and the proposed one.

Rounds are A B, B A, A B ..., so that what changes with time does to both the same. What is measured is the time of the whole command,
its launcher included.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from .. import program, stats
from ..errors import IvcError, UsageError
from ..profile import launch
from ..profile.words import seconds_text
from . import ranks

LEAST_ROUNDS = 5
#: Lines of a failed run that are shown.
_LINES = 30
_BEFORE, _AFTER = "before", "after"


class ProofError(IvcError):
    """A run of the proof has failed."""


def commands(command: Sequence[str], plan: ranks.Plan, folder: Path) -> dict[str, list[str]]:
    """The command for either placement; FOLDER keeps the files that it names."""
    launch.found(command)
    mpi = launch.recognise(command, launch.Here())
    found = {}
    for side, layout in ((_BEFORE, plan.present), (_AFTER, plan.proposed)):
        order, rankfile = folder / f"order-{side}", folder / f"rankfile-{side}"
        order.write_text(ranks.order(layout.guests))
        rankfile.write_text(ranks.rankfile(layout.guests))
        found[side] = _told(command, mpi, str(order), str(rankfile))
    return found


def _told(command: Sequence[str], mpi: launch.Mpi, order: str, rankfile: str) -> list[str]:
    if any(name in word for word in command for name in ("{order}", "{rankfile}")):
        return [word.replace("{order}", order).replace("{rankfile}", rankfile) for word in command]
    if mpi.launcher == "hydra":
        return [command[0], "-machinefile", order, *command[1:]]
    if mpi.launcher == "openmpi":
        is_4_1 = mpi.version.startswith("4.")  # from 5.0 on a rankfile does not say which hosts there are
        words = ["--rankfile", rankfile] if is_4_1 else ["--map-by", f"rankfile:file={rankfile}", "--hostfile", order]
        return [command[0], *words, *command[1:]]
    raise UsageError(
        f"{command[0]} is no launcher that is known", hint="write {order} or {rankfile} in the command, where its file is named"
    )


@dataclass
class Proof:
    """What was predicted, and what the rounds that are over have shown."""

    commands: dict[str, list[str]]
    #: Seconds that a rank is predicted to save; None: nothing was measured to tell it by.
    predicted: float | None
    #: Seconds of each run, of complete rounds.
    seconds: dict[str, list[float]] = field(default_factory=lambda: {_BEFORE: [], _AFTER: []})

    def run(self, rounds: int, say: Callable[[str], None]) -> None:
        for side in self.commands:
            say(f"warm-up, {side}: {seconds_text(self._once(side))}")
        for number in range(rounds):
            turn = list(self.commands) if number % 2 == 0 else list(reversed(self.commands))
            times = {side: self._once(side) for side in turn}
            for side, took in times.items():
                self.seconds[side].append(took)
            say(f"round {number + 1} of {rounds}: " + ", ".join(f"{side} {seconds_text(took)}" for side, took in times.items()))

    def _once(self, side: str) -> float:
        words = self.commands[side]
        begin = time.monotonic()
        try:
            ended = program.run(words, timeout=None)
        except OSError as fault:
            raise ProofError(f"{words[0]} cannot be started: {fault.strerror}") from None
        if ended.code != 0:
            how = f"signal {-ended.code}" if ended.code is not None and ended.code < 0 else f"exit status {ended.code}"
            raise ProofError(
                f"the run {side} ended with {how}: {' '.join(words)}",
                hint="it must succeed under both placements",
                detail="\n".join(ended.said.splitlines()[-_LINES:]),
            )
        return time.monotonic() - begin

    @property
    def comparison(self) -> stats.Comparison | None:
        """Before / after: more than 1 when the proposed placement is the faster one. None: no round is over."""
        before, after = self.seconds[_BEFORE], self.seconds[_AFTER]
        return stats.compare(before, after) if before else None

    @property
    def saved(self) -> float | None:
        """Seconds, by the medians."""
        before, after = self.seconds[_BEFORE], self.seconds[_AFTER]
        return stats.summary(before).median - stats.summary(after).median if before else None

    def as_dict(self) -> dict[str, object]:
        found = self.comparison
        return {
            "commands": self.commands,
            "seconds": self.seconds,
            "predicted_seconds_saved": self.predicted,
            "seconds_saved": self.saved,
            "comparison": found.as_dict() if found is not None else None,
        }

    def show(self, console: Console) -> None:
        found, saved = self.comparison, self.saved
        if found is None or saved is None:
            console.print("no round is over: nothing was measured")
            return
        table = Table(title=f"time of the command, {found.rounds} round" + ("s" if found.rounds > 1 else ""), title_justify="left")
        for name in ("", "median", "shortest", "longest"):
            table.add_column(name, justify="right" if name else "left")
        for side, times in self.seconds.items():
            one = stats.summary(times)
            table.add_row(side, *map(seconds_text, (one.median, one.min, one.max)))
        console.print(table)
        predicted = "not known in seconds (--measured)" if self.predicted is None else _saving(self.predicted)
        of_it = f", {saved / self.predicted:.2g} of what was predicted" if self.predicted else ""
        console.print(f"predicted: {predicted}; measured: {_saving(saved)}{of_it}", soft_wrap=True)
        console.print(_verdict(found), soft_wrap=True)


def _saving(seconds: float) -> str:
    return f"{seconds_text(abs(seconds))} {'less' if seconds >= 0 else 'more'}"


def _verdict(found: stats.Comparison) -> str:
    effect = f"before / after {found.median:.3f}"
    if found.interval is None or found.p is None:
        return f"{found.verdict(_BEFORE, _AFTER)}: {effect}"
    least = "" if found.resolvable is None else f"; a difference of {100 * found.resolvable:.1f} % would have been seen"
    often = "" if found.larger is None else f", after shorter in {100 * found.larger.share:.0f} % of the rounds"
    return (
        f"{found.verdict(_BEFORE, _AFTER)}: {effect}, {100 * stats.LEVEL:.0f} % interval {found.interval.low:.3f} .."
        f" {found.interval.high:.3f}, p = {found.p:.2g}{often}{least}"
    )
