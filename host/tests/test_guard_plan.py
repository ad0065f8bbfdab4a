"""What `ivc guard` plans, from what is known: every rule once, and once where it does not hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ivc_host.guard.plan import Alarm, HostView, MachineView, Move, Plan, Policy, Rules, Tried, make
from ivc_host.health.contract import Level

MIB = 1 << 20
FLAGS = frozenset({"sse4_2", "avx2"})
SICK = HostView("sick", Level.FAILING, "2 uncorrected memory errors", free_memory=0,
                cpu_flags=FLAGS, places=60)  # fmt: skip


def spare(name: str, **changed: object) -> HostView:
    view = HostView(name, Level.OK, load=0.1, free_memory=1024 * MIB, cpu_flags=FLAGS, places=60,
                    region_bytes=64 * MIB)  # fmt: skip
    return replace(view, **changed)  # type: ignore[arg-type]


def guest(name: str, host: str = "sick", **changed: object) -> MachineView:
    machine = MachineView(name, host, 256 * MIB, FLAGS, "job", 4, 8 * MIB)
    return replace(machine, **changed)  # type: ignore[arg-type]


def targets(plan: Plan) -> dict[str, str]:
    return {move.machine: move.target for move in plan.moves}


def alarms(plan: Plan) -> list[str]:
    return [alarm.kind for alarm in plan.alarms]


def test_a_job_goes_to_one_host() -> None:
    plan = make([SICK, spare("b", load=0.5), spare("a")], [guest("g1"), guest("g2")])
    assert targets(plan) == {"g1": "a", "g2": "a"}
    assert plan.alarms == ()
    assert plan.moves[0].why == "sick fails: 2 uncorrected memory errors"


@pytest.mark.parametrize("level", [Level.OK, Level.WARNING, Level.UNKNOWN])
def test_only_a_failing_host_is_left(level: Level) -> None:
    assert make([replace(SICK, level=level), spare("a")], [guest("g1")]) == Plan()


def test_a_host_is_emptied_by_hand() -> None:
    asked = replace(SICK, level=Level.OK, evacuate=True)
    plan = make([asked, spare("a")], [guest("g1")])
    assert targets(plan) == {"g1": "a"} and plan.moves[0].why == "sick is to be emptied"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"level": Level.WARNING, "why": "17 corrected errors"}, "its health is warning: 17"),
        ({"level": Level.UNKNOWN}, "its health is unknown"),
        ({"evacuate": True}, "it is to be emptied"),
        ({"not_spare": ("cpu load 40.0 %",)}, "no spare: cpu load 40.0 %"),
        ({"free_memory": 255 * MIB}, "256 MiB of memory are needed, 255 are free"),
        ({"free_memory": None}, "its memory is not known"),
        ({"cpu_flags": frozenset({"sse4_2"})}, "its processors have no avx2"),
        ({"cpu_flags": None}, "its processors have no avx2, sse4_2"),
        ({"places": None}, "it has no region"),
        ({"places": 3}, "its region has 3 places left, 4 are needed"),
        ({"region_bytes": 7 * MIB}, "its region has 7 MiB left, 8 are needed"),
    ],
)
def test_who_takes_nobody(changed: dict[str, object], reason: str) -> None:
    plan = make([SICK, spare("a", **changed)], [guest("g1")])
    assert plan.moves == () and alarms(plan) == ["no-target"]
    assert f"a: {reason}" in plan.alarms[0].text
    assert reason in plan.considered[("g1",)][0].reason


def test_a_machine_without_a_job_needs_no_region() -> None:
    alone = guest("g1", job=None, processes=0)
    assert targets(make([SICK, spare("a", places=None)], [alone])) == {"g1": "a"}


def test_any_host_with_room() -> None:
    busy = spare("a", not_spare=("it runs g9",))
    rules = Rules(policy=Policy.ANY_WITH_ROOM)
    assert targets(make([SICK, busy], [guest("g1")], rules)) == {"g1": "a"}
    assert make([SICK, busy], [guest("g1")]).moves == ()


def test_memory_is_promised_once() -> None:
    hosts = [SICK, spare("a", free_memory=300 * MIB)]
    plan = make(hosts, [guest("g1", job="one"), guest("g2", job="two")])
    assert targets(plan) == {"g1": "a"} and alarms(plan) == ["no-target"]


def test_the_reserve_is_left() -> None:
    hosts = [SICK, spare("a", free_memory=300 * MIB)]
    assert make(hosts, [guest("g1")], Rules(reserve=64 * MIB)).moves == ()


def test_a_job_is_cut_where_least_traffic_is() -> None:
    hosts = [SICK, spare("a", free_memory=512 * MIB), spare("b", free_memory=512 * MIB)]
    guests = [guest(name) for name in ("g1", "g2", "g3", "g4")]
    traffic = {frozenset(("g1", "g3")): 9.0, frozenset(("g2", "g4")): 8.0,
               frozenset(("g1", "g2")): 1.0}  # fmt: skip
    plan = make(hosts, guests, Rules(per_host=4), traffic=traffic)
    found = targets(plan)
    assert found["g1"] == found["g3"] != found["g2"] == found["g4"]
    assert alarms(plan) == ["divided"]


def test_where_the_others_of_the_job_are() -> None:
    hosts = [SICK, spare("a"), spare("b", load=0.9)]
    guests = [guest("g1"), guest("g2", "b")]
    rules = Rules(policy=Policy.ANY_WITH_ROOM)
    traffic = {frozenset(("g1", "g2")): 5.0}
    assert targets(make(hosts, guests, rules)) == {"g1": "a"}
    assert targets(make(hosts, guests, rules, traffic=traffic)) == {"g1": "b"}


def test_limits_let_some_wait() -> None:
    guests = [guest(f"g{i}") for i in range(4)]
    plan = make([SICK, spare("a"), spare("b")], guests, Rules(per_host=2))
    assert targets(plan) == {"g0": "a", "g1": "a"}
    assert plan.waiting == {name: "to a, after others: 2 moves at once on sick"
                            for name in ("g2", "g3")}  # fmt: skip
    none = make([SICK, spare("a")], guests, Rules(total=1), under_way=[_move("g9", "x", "y")])
    assert none.moves == () and set(none.waiting) == {"g0", "g1", "g2", "g3"}


def _move(name: str, source: str, target: str) -> Move:
    return Move(name, source, target, "job", 256 * MIB, "because")


def test_the_rest_of_a_job_follows() -> None:
    """The host that took the first of them runs a machine now; it is theirs all the same."""
    taken = spare("b", not_spare=("it runs g1",), load=50.0)
    hosts, guests = [SICK, spare("a"), taken], [guest("g1", "b"), guest("g2")]
    landed = [_move("g1", "sick", "b")]
    assert targets(make(hosts, guests, landed=landed)) == {"g2": "b"}
    assert targets(make(hosts, guests)) == {"g2": "a"}
    sick = [SICK, spare("a"), replace(taken, level=Level.WARNING)]
    assert targets(make(sick, guests, landed=landed)) == {"g2": "a"}


def test_a_host_that_is_no_spare_takes_none_of_another_host() -> None:
    """Also when the first machines of the job, from a host that failed before, are there."""
    before = replace(SICK, name="before")
    taken = spare("b", not_spare=("it runs g1",))
    guests, landed = [guest("g1", "b"), guest("g2")], [_move("g1", "before", "b")]
    rules = Rules(breaker=1.0)
    plan = make([before, SICK, taken], guests, rules, landed=landed)
    assert plan.moves == () and "b: no spare: it runs g1" in plan.alarms[0].text
    # A spare one is asked first where the others are, and any will do where that is the policy.
    hosts = [before, SICK, spare("a"), spare("b", load=0.9)]
    assert targets(make(hosts, guests, rules, landed=landed)) == {"g2": "b"}
    some = replace(rules, policy=Policy.ANY_WITH_ROOM)
    assert targets(make([before, SICK, spare("a"), taken], guests, some, landed=landed)) == {"g2": "b"}


def test_never_twice() -> None:
    hosts = [SICK, spare("a", free_memory=300 * MIB)]
    under_way = [_move("g1", "sick", "a")]
    plan = make(hosts, [guest("g1"), guest("g2", job="other")], under_way=under_way)
    assert plan.moves == () and alarms(plan) == ["no-target"]   # its memory is g1's
    unseen = make(hosts, [guest("g2", job="other")], under_way=under_way)  # on its way, on no host
    assert unseen.moves == () and alarms(unseen) == ["no-target"]


def test_somebody_else_moves_it() -> None:
    plan = make([SICK, spare("a")], [guest("g1", busy="a migration by another")])
    assert plan.moves == ()
    assert plan.alarms == (Alarm("busy", "g1", "g1 stays: a migration by another"),)


@pytest.mark.parametrize(("sick", "moves"), [(1, True), (2, True), (3, False)])
def test_circuit_breaker(sick: int, moves: bool) -> None:
    hosts = [replace(SICK, name=f"s{i}") for i in range(sick)]
    hosts += [spare(f"a{i}") for i in range(6 - sick)]
    plan = make(hosts, [guest("g1", "s0")])
    assert bool(plan.moves) is moves
    assert alarms(plan) == ([] if moves else ["breaker"])


def test_one_of_two_hosts_may_be_sick() -> None:
    assert targets(make([SICK, spare("a")], [guest("g1")])) == {"g1": "a"}


def test_tries() -> None:
    hosts, guests = [SICK, spare("a"), spare("b")], [guest("g1")]
    once = {"g1": Tried(1, 100.0, frozenset({"a"}))}
    soon = make(hosts, guests, tried=once, now=130.0)
    assert soon.moves == () and soon.waiting == {"g1": "failed 1 times, again in 30 s"}
    assert targets(make(hosts, guests, tried=once, now=160.0)) == {"g1": "b"}
    twice = {"g1": Tried(2, 100.0)}
    assert make(hosts, guests, tried=twice, now=219.0).moves == ()
    assert targets(make(hosts, guests, tried=twice, now=220.0)) == {"g1": "a"}
    thrice = make(hosts, guests, tried={"g1": Tried(3, 0.0)}, now=1e9)
    assert thrice.moves == () and alarms(thrice) == ["tries"]
