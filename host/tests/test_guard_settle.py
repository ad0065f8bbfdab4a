"""What becomes of a move whose guard was killed: each pair of states in which it may be found."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ivc_host.guard.engine import Ended, Outcome
from ivc_host.guard.mover import _Pair
from ivc_host.hypervisor.contract import Hypervisor, Machine, State
from ivc_host.hypervisor.faults import MachineError


class Host:
    """One of two hosts, which may have the machine."""

    def __init__(self, name: str, state: State | None, whole: bool = True) -> None:
        self.host = SimpleNamespace(name=name, region=None)
        self.capabilities = SimpleNamespace(regions=True)
        self.state = state
        #: What waits here has all of the machine's memory.
        self.whole = whole
        #: A migration away from here is under way.
        self.migrates = False

    async def machine(self, name: str) -> Any:
        return None if self.state is None else Found(self)


class Found:
    key = "g1 of test_guard_settle"

    def __init__(self, at: Host) -> None:
        self._at = at

    async def state(self) -> State | None:
        return self._at.state

    async def region(self) -> None:
        return None

    def migrate(self, target: Machine) -> Any:
        async def cancel() -> bool:
            self._at.migrates = False
            return True

        return SimpleNamespace(cancel=cancel)

    async def resume(self) -> None:
        if not self._at.whole:
            raise MachineError("its memory is not whole")
        self._at.state = State.RUNNING

    async def end(self) -> None:
        self._at.state = None

    async def close(self) -> None: ...


def settle(here: Host, there: Host) -> Ended:
    pair = _Pair("g1", cast(Hypervisor, here), cast(Hypervisor, there), None)
    return asyncio.run(pair.settle())


STATES = [None, *State]


@pytest.mark.parametrize(("before", "after"), list(itertools.product(STATES, STATES)))
@pytest.mark.parametrize("whole", [True, False])
def test_it_runs_once(before: State | None, after: State | None, whole: bool) -> None:
    here, there = Host("a", before), Host("b", after, whole)
    ended = settle(here, there)
    runs = [host.host.name for host in (here, there) if host.state is State.RUNNING]
    if ended.outcome is Outcome.UNDECIDED:
        # A person has to look: nothing was started, and nothing ended.
        assert before is after is State.RUNNING or runs == []
        assert (here.state, there.state) == (before, after)
    else:
        assert runs == [{Outcome.MOVED: "b", Outcome.UNDONE: "a"}[ended.outcome]]


@pytest.mark.parametrize(
    ("before", "after", "outcome"),
    [
        (State.RUNNING, None, Outcome.UNDONE),              # before a place was made, or it ended
        (State.RUNNING, State.WAITING, Outcome.UNDONE),     # until its memory was moved
        (State.MOVED, State.PAUSED, Outcome.MOVED),         # just before it was told to run
        (State.MOVED, State.WAITING, Outcome.MOVED),
        (State.MOVED, State.RUNNING, Outcome.MOVED),        # and just after
        (None, State.RUNNING, Outcome.MOVED),
        (State.MOVED, None, Outcome.UNDONE),                # the place has died
        (None, None, Outcome.UNDECIDED),
        (State.RUNNING, State.RUNNING, Outcome.UNDECIDED),
    ],
)  # fmt: skip
def test_what_is_made_of_it(before: State | None, after: State | None, outcome: Outcome) -> None:
    assert settle(Host("a", before), Host("b", after)).outcome is outcome


def test_a_migration_under_way_is_ended() -> None:
    here, there = Host("a", State.RUNNING), Host("b", State.WAITING)
    here.migrates = True
    assert settle(here, there).outcome is Outcome.UNDONE
    assert not here.migrates and there.state is None


def test_what_did_not_arrive_whole_goes_back() -> None:
    here, there = Host("a", State.MOVED), Host("b", State.WAITING, whole=False)
    assert settle(here, there).outcome is Outcome.UNDONE
    assert here.state is State.RUNNING and there.state is None
