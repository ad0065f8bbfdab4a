"""Parts of a migration without a hypervisor: who is whose, the inventory, a fault at every step."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

from ivc_host.errors import IvcError
from ivc_host.hypervisor import contract, qemu, xen, xenstore
from ivc_host.hypervisor.contract import (
    Capabilities,
    Event,
    HostDescription,
    Hypervisor,
    Machine,
    MachineDescription,
    Migration,
    Moving,
    RegionDevice,
    State,
)
from ivc_host.hypervisor.faults import GoneError, MachineError, MigrateError
from ivc_host.hypervisor.host import Host
from ivc_host.hypervisor.reach import Reach
from ivc_host.migrate import departure, guests, inventory, journey, room, show
from ivc_host.migrate.inventory import InventoryError
from ivc_host.migrate.journey import Journey, Limits, UndecidedError
from ivc_host.migrate.order import Group
from ivc_host.migrate.room import Room

UUID = "0f8fad5b-d9cb-469f-a165-70867728950e"


def test_identity_is_fnv1a() -> None:
    assert guests.identity_of("") == "cbf29ce484222325"
    assert guests.identity_of("a") == "af63dc4c8601ec8c"
    assert guests.identity_of("foobar") == "85944171f73967e8"


def test_roll_of_xen() -> None:
    roll = xenstore.Roll()
    assert roll.left is None and not roll.is_empty()
    for now in range(0, 21):
        roll.note(f"a:{now} b:3 ", now)  # b does not hear the order any more
        assert roll.dead(now) == (["b"] if now in (10, 20) else [])
    roll.note("a:21 ", 21)
    assert roll.left == 1 and roll.dead(30) == []
    roll.note("", 31)
    assert roll.left == 0 and not roll.is_empty()  # another may have been about to join
    roll.note(": ", 31)  # an empty line of the list
    assert roll.left == 0
    roll.note("c: ", 32)
    roll.note("c:0 ", 32)
    roll.note("", 33)
    roll.note("", 34)
    assert roll.is_empty()


#: Lists one process, which hears the order's beat or not, until it is told that it is dead.
_LIST = """
i=0
while ! read -t 0.01 dead; do i=$((i + 1)); echo "7:$((i * $1)) "; done
while sleep 0.01; do echo; done
"""


@pytest.mark.parametrize(("hears", "left"), [(0, 0), (1, 1)])
def test_who_was_killed_does_not_count(
    monkeypatch: pytest.MonkeyPatch, hears: int, left: int
) -> None:
    monkeypatch.setattr(xenstore, "_LEASE", 0.5)

    async def ask() -> int | None:
        order = await asyncio.create_subprocess_exec(
            *("bash", "-c", _LIST, "list", str(hears)), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            return await xenstore._answers(order, time.monotonic(), 0.2)
        finally:
            order.kill()
            await order.wait()

    assert asyncio.run(ask()) == left


def group(host: str, identity: str = "1") -> Group:
    return Group(f"{identity:0>16}", (host,), 2)


@pytest.mark.parametrize(
    ("groups", "said", "expected"),
    [
        ([], None, ([guests.identity_of(UUID)], 0)),
        ([group("x", guests.identity_of(UUID))], None, ([guests.identity_of(UUID)], 2)),
        ([group("x", guests.identity_of("g1"))], None, ([guests.identity_of("g1")], 2)),
        ([group("g1"), group("g2", "2")], None, (["0000000000000001"], 2)),
        ([group("g1.example.org")], None, (["0000000000000001"], 2)),
        # Root's processes may read the UUID, others may not: two identities of one guest.
        (
            [group("g1", guests.identity_of(UUID)), group("g1", "2")],
            None,
            ([guests.identity_of(UUID), f"{2:016}"], 4),
        ),
        ([group("g2")], None, ([guests.identity_of(UUID)], 0)),
        ([group("g11"), group("x")], "none", ([], 0)),
        ([group("x")], "x", (["x"], 2)),
        ([group("x", "AB".lower())], f"{'AB':0>16}", ([f"{'AB':0>16}"], 2)),
        ([group("x", guests.identity_of(UUID))], UUID.upper(), ([UUID.upper()], 2)),
        ([group("x", guests.identity_of("vm-1"))], "vm-1", (["vm-1"], 2)),
        # A guest without a job: nobody is there, or only who is known to be of another machine.
        ([], "g1", (["g1"], 0)),
        ([group("g2")], "g1", (["g1"], 0)),
    ],
)
def test_who_is_ordered_away(groups: list[Group], said: str | None, expected: object) -> None:
    assert guests.choose(groups, ["g1", "vm-1"], UUID, ["g2"], said) == expected


def test_a_host_name_of_several_guests_stops_it() -> None:
    far = Group("2", ("g1.far",), 1, frozenset({2}))
    near = Group("1", ("g1.near",), 1, frozenset({1}))
    for said in (None, "g1.near"):
        expected = (["1"], 1) if said is None else (["g1.near"], 1)
        assert guests.choose([near], ["g1"], UUID, [], said) == expected
    with pytest.raises(MigrateError, match="several guests in the region: g1.near .*, g1.far"):
        guests.choose([near, far], ["g1"], UUID, [], None)
    # Its UUID tells, and of the host names only those that are its own.
    known = Group(guests.identity_of(UUID), ("g1.near",), 1, frozenset({1}))
    assert guests.choose([known, near, far], ["g1"], UUID, [], None) == ([known.identity, "1"], 2)


@pytest.mark.parametrize("said", [None, UUID, "g1"])
def test_copies_of_a_guest_stop_it(said: str | None) -> None:
    both = Group(guests.identity_of(UUID), ("g1", "g2"), 2, frozenset({0, 1}))
    with pytest.raises(MigrateError, match="several guests"):
        guests.choose([both], ["g1"], UUID, [], said)


@pytest.mark.parametrize("stranger", ["g11", "node17", ""])
def test_strangers_stop_it(stranger: str) -> None:
    with pytest.raises(MigrateError, match="--guest"):
        guests.choose([group(stranger), group("g2", "2")], ["g1"], None, ["g2"], None)


@pytest.mark.parametrize("there", ["g1", "g11", "node17"])
def test_a_mistyped_guest_stops_it(there: str) -> None:
    """The machine's own processes, or somebody's that may be."""
    with pytest.raises(MigrateError, match=f"nobody of 'typo' .* there are {there} .*--guest none"):
        guests.choose([group(there), group("g2", "2")], ["g1"], None, ["g2"], "typo")


GOOD = '[hosts.a]\nqmp = "/run/{vm}.qmp"\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "needs tables"),
        ("[hosts]\n", "needs tables"),
        ("hosts = 3", "needs tables"),
        ("[hosts.a\n", "not TOML"),
        (GOOD + "[machines.a]\n", "needs tables"),
        ("[hosts]\na = 3\n", "is not a table"),
        ("[hosts.a]\n", "needs qmp"),
        ('[hosts.a]\nqmp = "/run/vm.qmp"\n', "needs qmp"),
        ('[hosts.a]\nqmp = "{vm}.qmp"\n', "whole path"),
        (GOOD + 'regoin = "/x"\n', "no such key as regoin"),
        (GOOD + "region = 3\n", "must be a text"),
        (GOOD + 'region = "x"\n', "whole path"),
        (GOOD + 'start = "qemu"\nssh = [1]\n', "list of words"),
        (GOOD + 'hypervisor = "vbox"\n', "vbox is not known"),
        (GOOD + 'listen = "tcp:0.0.0.0:0"\n', "cannot listen"),
        (GOOD + 'listen = "tcp:here"\n', "cannot listen"),
        (GOOD + 'listen = "exec:cat"\n', "cannot listen"),
    ],
)
def test_bad_inventory(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "hosts.toml"
    path.write_text(text)
    with pytest.raises(InventoryError, match=expected) as caught:
        inventory.load(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_good_inventory(tmp_path: Path) -> None:
    path = tmp_path / "hosts.toml"
    path.write_text(GOOD + 'ssh = "root@a"\nlisten = "tcp:[fe80::1]:4444"\n')
    host = inventory.load(path).host("a")
    assert isinstance(host.settings, qemu.Settings)
    assert (host.ssh, host.settings.start, host.region) == (("root@a",), (), None)


# ---- A fault at every step: a hypervisor that keeps its promises, and one call that does not.


class Hypervisors(Hypervisor):
    """That of host b; host a has the machine. Counts what must never happen: running on both."""

    Settings = object
    capabilities = Capabilities(regions=True, grants=False, held=True)

    def __init__(self, fail: str, how: Callable[[], BaseException] | None) -> None:
        host = Host("b", "fake", None, region="/b")
        super().__init__(host, Reach(host))
        self.fail, self.how = fail, how
        self.calls: list[str] = []
        self.source = Fake(self, "a", State.RUNNING, DEVICE)
        self.target: Fake | None = None
        self.ordered = False
        self.task: asyncio.Task[Any] | None = None

    async def at(self, call: str) -> None:
        self.calls.append(call)
        assert not self.twice(), "it runs on both hosts"
        if call == self.fail and self.how is not None:
            how, self.how = self.how, None
            raise how()
        if call == self.fail and self.task is not None:
            task, self.task = self.task, None
            task.cancel()
        await asyncio.sleep(0)

    def twice(self) -> bool:
        return self.target is not None and (
            self.source.is_state is self.target.is_state is State.RUNNING
        )

    async def machines(self) -> list[str]:
        return []

    async def machine(self, name: str) -> Machine | None:
        await self.at("machine")
        if self.target is None or self.target.is_state is None:
            return None
        return self.target

    async def expect(self, name: str, say: Callable[[str], None]) -> Machine:
        await self.at("expect")
        self.target = Fake(self, "b", State.WAITING, None)
        return self.target

    async def load(self, name: str, file: str) -> Machine:
        raise NotImplementedError

    async def describe(self) -> HostDescription:
        raise NotImplementedError

    async def events(self) -> AsyncGenerator[Event, None]:
        raise NotImplementedError
        yield Event("", "")


class Unheld(Hypervisors):
    """Whoever has been moved runs there at once."""

    capabilities = Capabilities(regions=True, grants=False, held=False)


DEVICE = RegionDevice("/a", 1 << 20, "ivc0", "ivcmem", "pci.0", "0x10.0")


class Fake(Machine):
    """A machine, or None for its state when it has ended."""

    uuid = None
    name = key = "g1"

    def __init__(
        self, all_: Hypervisors, host: str, state: State, device: RegionDevice | None
    ) -> None:
        self.all, self.host = all_, host
        self.is_state: State | None = state
        self.has = device

    async def at(self, call: str) -> None:
        if self.is_state is None:
            raise GoneError(f"g1 on {self.host}: its hypervisor has ended")
        await self.all.at(f"{self.host}.{call}")

    async def state(self) -> State:
        await self.at("state")
        assert self.is_state is not None
        return self.is_state

    async def describe(self) -> MachineDescription:
        raise NotImplementedError

    async def region(self) -> RegionDevice | None:
        await self.at("region")
        return self.has

    async def blockers(self) -> list[str]:
        await self.at("blockers")
        return []

    async def prepare(self, device: RegionDevice) -> None:
        await self.at("prepare")

    async def attach(self, device: RegionDevice) -> None:
        await self.at("attach")
        assert self.has is None
        self.has = device

    async def detach(self, device: RegionDevice, timeout: float) -> None:
        assert self.all.ordered, "the device goes before its users have"
        await self.at("detach")
        self.has = None

    def migrate(self, target: Machine) -> Migration:
        assert isinstance(target, Fake)
        return FakeMigration(self, target)

    async def pause(self) -> None:
        self.is_state = State.PAUSED

    async def resume(self) -> None:
        await self.at("resume")
        self.is_state = State.RUNNING

    async def save(self, file: str) -> None:
        raise NotImplementedError

    async def end(self) -> None:
        await self.at("end")
        self.is_state = None


class FakeMigration(Migration):
    def __init__(self, source: Fake, target: Fake) -> None:
        self.source, self.target = source, target

    async def progress(self) -> AsyncGenerator[Moving, None]:
        source, target = self.source, self.target
        assert source.has is None
        await source.at("migrate")
        yield Moving(transferred=1)
        await source.at("moving")
        source.is_state = State.MOVED
        held = source.all.capabilities.held
        target.is_state = State.PAUSED if held else State.RUNNING
        await source.at("moved")
        yield Moving(done=True, transferred=2, downtime=0.03)

    async def cancel(self) -> bool:
        await self.source.at("cancel")
        if self.target.is_state is State.RUNNING:
            return False
        self.source.is_state = State.RUNNING
        return True


class FakeOrder:
    seconds = 0.01

    def __init__(self, all_: Hypervisors) -> None:
        self._all = all_

    async def withdraw(self) -> None:
        self._all.ordered = False


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> dict[str, Hypervisors]:
    """Orders and rooms without a region: `now` says whose."""
    holder: dict[str, Hypervisors] = {}

    class Orders:
        @classmethod
        async def give(cls, *words: object) -> FakeOrder:
            await holder["now"].at("order")
            holder["now"].ordered = True
            return FakeOrder(holder["now"])

    async def check(reach: Reach, path: str, members: int) -> Room:
        await holder["now"].at("room")
        return Room(1 << 20, "ready", 64, 1 << 20, 0, 0)

    monkeypatch.setattr(departure, "RegionOrder", Orders)
    monkeypatch.setattr(departure, "_NOTICE_SECONDS", 0.0)
    monkeypatch.setattr(departure, "_SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(room, "check", check)
    return holder


def go(all_: Hypervisors, cancel: bool = False, stall: float = 30.0) -> journey.Report:
    async def main() -> journey.Report:
        if cancel:
            all_.task = asyncio.current_task()
        tell = show.Quiet(lambda: setattr(all_, "task", None))
        limits = Limits(1.0, 1.0, stall)
        return await Journey(all_.source, all_, all_, DEVICE, "/a", ["1"], 1, limits, tell).run()

    return asyncio.run(main())


BEFORE = ["a.state", "a.blockers", "machine", "room", "expect", "b.prepare", "order", "a.detach",
          "a.migrate", "a.moving", "a.moved"]  # fmt: skip
AFTER = ["b.attach", "a.end"]


def test_all_goes_well(orders: dict[str, Hypervisors]) -> None:
    orders["now"] = all_ = Hypervisors("", None)
    report = go(all_)
    assert [call for call in all_.calls if call in BEFORE + AFTER] == BEFORE + AFTER
    assert report.notes == [] and not all_.ordered
    assert all_.target is not None and all_.target.is_state is State.RUNNING
    assert all_.source.is_state is None
    assert all_.target.has is not None and all_.target.has.path == "/b"
    assert all_.target.has.address == "0x10.0"


def is_back(all_: Hypervisors) -> None:
    assert all_.source.is_state is State.RUNNING
    assert all_.source.has == DEVICE
    assert not all_.ordered
    assert all_.target is None or all_.target.is_state is None


@pytest.mark.parametrize("call", [*BEFORE, "b.resume"])
def test_a_fault_before_no_return(orders: dict[str, Hypervisors], call: str) -> None:
    orders["now"] = all_ = Hypervisors(call, lambda: MachineError("the reason"))
    with pytest.raises(MigrateError, match="was not moved: .*the reason; it runs on a as before"):
        go(all_)
    is_back(all_)


@pytest.mark.parametrize("call", BEFORE)
def test_interrupted_before_no_return(orders: dict[str, Hypervisors], call: str) -> None:
    orders["now"] = all_ = Hypervisors(call, None)
    with pytest.raises(MigrateError, match="interrupted; it runs on a as before") as caught:
        go(all_, cancel=True)
    assert caught.value.exit_code == 130
    is_back(all_)


@pytest.mark.parametrize("call", AFTER)
def test_a_fault_after_no_return_is_a_note(orders: dict[str, Hypervisors], call: str) -> None:
    orders["now"] = all_ = Hypervisors(call, lambda: MachineError("the reason"))
    report = go(all_)
    assert len(report.notes) == 1 and "the reason" in report.notes[0]
    assert all_.target is not None and all_.target.is_state is State.RUNNING
    assert not all_.ordered


def test_destination_ends_when_told_to_run(orders: dict[str, Hypervisors]) -> None:
    def dies() -> BaseException:
        assert all_.target is not None
        all_.target.is_state = None
        return GoneError("gone")

    orders["now"] = all_ = Hypervisors("b.resume", dies)
    with pytest.raises(MigrateError, match="has lost it.*it runs on a as before"):
        go(all_)
    is_back(all_)


def test_destination_runs_but_the_answer_is_lost(orders: dict[str, Hypervisors]) -> None:
    def runs() -> BaseException:
        assert all_.target is not None
        all_.target.is_state = State.RUNNING
        return GoneError("gone")

    orders["now"] = all_ = Hypervisors("b.resume", runs)
    go(all_)
    assert all_.source.is_state is None  # ended: it is over there


def test_destination_falls_silent(
    orders: dict[str, Hypervisors], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows whether it runs over there: it must not be started here."""
    orders["now"] = all_ = Hypervisors("b.resume", lambda: GoneError("gone"))

    async def unreachable(self: Hypervisors, name: str) -> Machine | None:
        if "b.resume" in self.calls:
            raise MachineError("host b is not reached")
        return None

    monkeypatch.setattr(Hypervisors, "machine", unreachable)
    with pytest.raises(UndecidedError, match="stands still on a, whole; if it does not run on b"):
        go(all_)
    assert all_.source.is_state is State.MOVED
    assert not all_.ordered


def test_what_cannot_be_taken_back_is_said(
    orders: dict[str, Hypervisors], monkeypatch: pytest.MonkeyPatch
) -> None:
    orders["now"] = all_ = Hypervisors("a.migrate", lambda: MachineError("the reason"))

    async def refuses(self: Fake, device: RegionDevice) -> None:
        raise MachineError("no slot is free")

    monkeypatch.setattr(Fake, "attach", refuses)
    with pytest.raises(MigrateError, match="without its region.*no slot is free"):
        go(all_)
    assert all_.source.is_state is State.RUNNING and not all_.ordered


def test_nothing_moves(orders: dict[str, Hypervisors], monkeypatch: pytest.MonkeyPatch) -> None:
    async def stuck(self: FakeMigration) -> AsyncGenerator[Moving, None]:
        while True:
            await asyncio.sleep(0.01)
            yield Moving(transferred=5 << 20)

    monkeypatch.setattr(FakeMigration, "progress", stuck)
    orders["now"] = all_ = Hypervisors("", None)
    with pytest.raises(IvcError, match="not a byte has reached b .*after 5 MiB; it runs on a"):
        go(all_, stall=0.2)
    is_back(all_)


def test_nothing_is_counted(
    orders: dict[str, Hypervisors], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hypervisor that counts no bytes is not taken for one that moves none."""

    async def silent(self: FakeMigration) -> AsyncGenerator[Moving, None]:
        for _ in range(30):
            await asyncio.sleep(0.01)
            yield Moving(phase="saving")
        self.source.is_state, self.target.is_state = State.MOVED, State.PAUSED
        yield Moving(done=True)

    monkeypatch.setattr(FakeMigration, "progress", silent)
    orders["now"] = all_ = Hypervisors("", None)
    assert go(all_, stall=0.1).transferred is None


# ---- A hypervisor that lets a moved machine run by itself.


def test_unheld_goes_well(orders: dict[str, Hypervisors]) -> None:
    orders["now"] = all_ = Unheld("", None)
    report = go(all_)
    assert "b.resume" not in all_.calls and "switch" not in report.phases
    assert all_.target is not None and all_.target.is_state is State.RUNNING
    assert all_.target.has is not None and all_.target.has.path == "/b"
    assert all_.source.is_state is None and report.notes == []


@pytest.mark.parametrize("call", [call for call in BEFORE if call != "a.moved"])
def test_unheld_fault_before_it_runs_there(orders: dict[str, Hypervisors], call: str) -> None:
    orders["now"] = all_ = Unheld(call, lambda: MachineError("the reason"))
    with pytest.raises(MigrateError, match="was not moved: .*the reason; it runs on a as before"):
        go(all_)
    is_back(all_)


@pytest.mark.parametrize("cancel", [True, False])
def test_unheld_too_late(orders: dict[str, Hypervisors], cancel: bool) -> None:
    """It runs over there, and whoever waited for that was told something else."""
    orders["now"] = all_ = Unheld("a.moved", None if cancel else lambda: MachineError("a reason"))
    report = go(all_, cancel)
    assert len(report.notes) == 1 and "too late to go back" in report.notes[0]
    assert all_.target is not None and all_.target.is_state is State.RUNNING
    assert all_.target.has is not None and all_.target.has.path == "/b"
    assert all_.source.is_state is None and not all_.ordered


def test_hosts_of_two_kinds(orders: dict[str, Hypervisors]) -> None:
    orders["now"] = all_ = Hypervisors("", None)
    host = Host("c", "xen", xen.Settings())
    tell = show.Quiet(lambda: None)
    there = xen.Xen(host, Reach(host))
    one = Journey(all_.source, all_, there, DEVICE, "/a", ["1"], 1, Limits(), tell)
    with pytest.raises(MigrateError, match="c is a host with xen, a one with fake.*as before"):
        asyncio.run(one.run())
    is_back(all_)


def test_contract_is_abstract() -> None:
    with pytest.raises(TypeError):
        contract.Machine()  # type: ignore[abstract]
