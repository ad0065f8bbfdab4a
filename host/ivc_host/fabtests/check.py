"""Runs sets of fabtests against a provider and holds each outcome against the table of reasons."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from .. import paths
from ..errors import IvcError
from .reasons import explain
from .runner import FAILED, NOT_RUN, PASSED, Result, Runner
from .sets import Test
from .source import Fabtests

OURS = "ivc"
_REGION_SIZE = 64 << 20


@dataclass(frozen=True)
class Verdict:
    """A result, and what our table says about it."""

    result: Result
    #: `pass`, `FAIL` or `not run`: the result's, or FAIL where the table does not agree with it.
    outcome: str
    #: Why it was not run, or why it failed.
    why: str = ""
    #: Cases inside a unit test that it left out, each with its reason.
    left_out: tuple[tuple[str, str], ...] = field(default=())

    def as_dict(self) -> dict[str, object]:
        test = self.result.test
        return {
            "set": test.set,
            "test": test.line,
            "outcome": self.outcome,
            "why": self.why,
            "left_out": dict(self.left_out),
            "seconds": round(self.result.seconds, 2),
        }


def judge(result: Result, strict: bool) -> Verdict:
    """`strict`: every "not run" needs its reason; otherwise (other providers) the words suffice."""
    line = result.test.line
    if result.outcome == FAILED:
        return Verdict(result, FAILED, result.how)
    if not strict:
        return Verdict(result, result.outcome, left_out=tuple(result.left_out()))
    reason = None if result.test.negative else explain(line)
    if result.outcome == NOT_RUN:
        if reason is None:
            return Verdict(result, FAILED, f"not run, and no reason is known: {result.how}")
        return Verdict(result, NOT_RUN, reason.text)
    if reason is not None:
        return Verdict(result, FAILED, f"it ran, but the table says it cannot: {reason.text}")
    return _cases(result)


def _cases(result: Result) -> Verdict:
    """A unit test that passed as a whole may have left out some of its cases."""
    explained = []
    for case, words in result.left_out():
        reason = explain(f"{result.test.program}: {case}")
        if reason is None:
            return Verdict(result, FAILED, f"left out {case} ({words}), and no reason is known")
        explained.append((case, reason.text))
    return Verdict(result, PASSED, left_out=tuple(explained))


@contextmanager
def region() -> Iterator[Path]:
    """A region for the tests alone, gone at the end."""
    path = Path(f"/dev/shm/ivc-test-{os.getpid()}-fabtests")
    try:
        with open(path, "xb") as file:
            file.truncate(_REGION_SIZE)
    except OSError as error:
        raise IvcError(f"cannot make the region {path}: {error.strerror}") from error
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def environment(provider: str, where: Path) -> Mapping[str, str]:
    """What a test runs with; whatever a caller has set for ivc or libfabric does not count."""
    env = {name: "" for name in os.environ if name.startswith("IVC_")}
    env |= {f"FI_{name}_IFACE": "lo" for name in ("TCP", "SOCKETS", "UDP")}
    if provider != OURS:
        return env
    folder = paths.provider()
    paths.require_built(folder / "libivc-fi.so")
    return {
        **env,
        "FI_PROVIDER_PATH": str(folder),
        "FI_PROVIDER": OURS,
        "IVC_REGION": str(where),
    }


def run(
    fabtests: Fabtests,
    tests: Sequence[Test],
    provider: str = OURS,
    timeout: float = 60.0,
    tell: Callable[[Verdict], None] = lambda verdict: None,
) -> list[Verdict]:
    """Run the tests one after the other."""
    verdicts = []
    with region() as where:
        runner = Runner(fabtests.folder, provider, environment(provider, where), timeout)
        for test in tests:
            verdict = judge(runner.run(test), strict=provider == OURS)
            verdicts.append(verdict)
            tell(verdict)
    return verdicts


def chosen(tests: Sequence[Test], pattern: str | None) -> list[Test]:
    return [test for test in tests if pattern is None or re.search(pattern, test.line)]
