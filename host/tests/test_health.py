"""Health and load of hosts: the judgement, the spares, what is kept, sources on fake trees, the command."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from ivc_host.health import registry, round
from ivc_host.health.contract import Context, HealthError, Level, Options, Reading, Source
from ivc_host.health.hostfiles import HostError, HostFiles
from ivc_host.health.judge import HostState, ItemKey, ItemState, Rule, fold, judge
from ivc_host.health.load import Load, LoadContext, Sample, covered, mean
from ivc_host.health.load_proc import ProcLoad
from ivc_host.health.past import PastFile, file_for
from ivc_host.health.settings import HostSettings, Settings, SettingsError, load
from ivc_host.health.spares import Machines, SpareRule, choose
from ivc_host.hypervisor.host import Host
from ivc_host.migrate.inventory import InventoryError
from ivc_host.migrate.inventory import load as load_inventory

OK, WARNING, FAILING, UNKNOWN = Level.OK, Level.WARNING, Level.FAILING, Level.UNKNOWN


def states_after(
    levels: Sequence[Level], rule: Rule, item: str = "memory/mc0", step: float = 60
) -> list[HostState]:
    """The state of host a after each of the readings, STEP seconds apart."""
    states: Mapping[ItemKey, ItemState] = {}
    found = []
    for number, level in enumerate(levels):
        name = "" if level is UNKNOWN else item
        states = fold(states, [Reading("a", "edac", name, level, level, at=number * step)],
                      {"edac": rule})  # fmt: skip
        found.append(judge(["a"], states, {"edac": rule})["a"])
    return found


@pytest.mark.parametrize(
    ("readings", "rule", "expected"),
    [
        # Twice in a row, and then until a hand clears it.
        ([FAILING, FAILING, OK, OK], Rule(), [WARNING, FAILING, FAILING, FAILING]),
        ([FAILING, OK, FAILING, OK, OK], Rule(), [WARNING, WARNING, WARNING, WARNING, OK]),
        ([FAILING, WARNING, FAILING], Rule(), [WARNING] * 3),
        ([FAILING], Rule(confirm=1), [FAILING]),
        ([FAILING] * 3, Rule(confirm=3), [WARNING, WARNING, FAILING]),
        # Readings that follow each other too soon; these are a minute apart.
        ([FAILING] * 4, Rule(apart=100), [WARNING, WARNING, FAILING, FAILING]),
        ([FAILING, OK, FAILING, FAILING], Rule(apart=100), [WARNING, WARNING, WARNING, WARNING]),
        # After a time of good readings; a bad one begins it anew.
        (
            [FAILING, FAILING, OK, OK, OK],
            Rule(recover=100),
            [WARNING, FAILING, FAILING, FAILING, OK],
        ),
        (
            [FAILING, FAILING, OK, WARNING, OK, OK, OK],
            Rule(recover=100),
            [WARNING, *[FAILING] * 5, OK],
        ),
        # An administrator's own word.
        ([FAILING, OK], Rule(confirm=1, latches=False), [FAILING, OK]),
        # A warning is over after two good ones.
        ([WARNING, OK, OK], Rule(), [WARNING, WARNING, OK]),
        # Unknown is not failing, breaks no row, and heals nothing.
        ([UNKNOWN, UNKNOWN, UNKNOWN], Rule(), [UNKNOWN] * 3),
        ([FAILING, UNKNOWN, FAILING], Rule(), [WARNING, WARNING, FAILING]),
        ([FAILING, FAILING, UNKNOWN, UNKNOWN], Rule(recover=1), [WARNING, FAILING, FAILING, FAILING]),
        ([OK, UNKNOWN, UNKNOWN, UNKNOWN], Rule(), [OK] * 4),
    ],
)  # fmt: skip
def test_judgement(readings: list[Level], rule: Rule, expected: list[Level]) -> None:
    assert [state.level for state in states_after(readings, rule)] == expected


def test_silence_is_told_with_its_beginning() -> None:
    states = states_after([OK, UNKNOWN, UNKNOWN, OK], Rule())
    assert [bool(state.silent) for state in states] == [False, True, True, False]
    assert states[2].silent[0].state.unknown_since == 60
    # Known by nobody: neither good nor bad.
    never = states_after([UNKNOWN], Rule())[0]
    assert never.level is UNKNOWN and not never.silent and never.unknown
    # The source finds its voice: nothing is left of its having had none.
    assert not states_after([UNKNOWN, OK], Rule())[-1].unknown


def test_an_item_that_vanishes_is_unknown_not_well() -> None:
    rules = {"edac": Rule(confirm=1)}
    first = [Reading("a", "edac", "memory/mc0", FAILING, "3 errors", at=1),
             Reading("a", "edac", "memory/mc1", OK, "none", at=1)]  # fmt: skip
    states = fold({}, first, rules)
    states = fold(states, [Reading("a", "edac", "memory/mc1", OK, "none", at=2)], rules)
    state = judge(["a"], states, rules)["a"]
    assert state.level is FAILING
    assert state.silent[0].key.item == "memory/mc0" and state.silent[0].state.unknown_since == 2
    # Another host, and another source, say nothing of it.
    others = fold(states, [Reading("b", "edac", "memory/mc0", OK, "", at=3),
                           Reading("a", "file", "administrator/file", OK, "", at=3)], rules)  # fmt: skip
    assert others[ItemKey("a", "edac", "memory/mc1")] == states[ItemKey("a", "edac", "memory/mc1")]


def test_contradictions_are_listed_and_the_worse_counts() -> None:
    rules = {name: Rule(confirm=1) for name in ("edac", "rasdaemon", "file")}
    readings = [
        Reading("a", "edac", "memory/mc0", OK, "", at=1),
        Reading("a", "rasdaemon", "memory/events", FAILING, "", at=1),
        Reading("a", "file", "administrator/file", OK, "", at=1),
    ]
    state = judge(["a"], fold({}, readings, rules), rules)["a"]
    assert state.contradictions == ("memory: rasdaemon says failing, edac says ok",)
    assert state.level is FAILING
    # A source that is not asked any more does not count.
    rest = {"edac": Rule()}
    assert judge(["a"], fold({}, readings, rules), rest)["a"].level is OK


def healthy(host: str) -> HostState:
    readings = [Reading(host, "edac", "memory/mc0", OK, "", at=1)]
    return judge([host], fold({}, readings, {"edac": Rule()}), {"edac": Rule()})[host]


IDLE = Load("a", 0.1, 0.2, 0.3, 1.0)


def reasons(
    state: HostState | None = None,
    of_load: Load = IDLE,
    machines: Machines = Machines(),
    **more: Any,
) -> tuple[str, ...]:
    states = {"a": state or healthy("a")}
    return choose(["a"], states, {"a": of_load}, {"a": machines}, SpareRule(), **more)[0].reasons


def test_spare_and_every_reason_against() -> None:
    assert reasons() == ()
    assert reasons(machines=Machines(standby=("s1",))) == ()
    assert reasons(machines=Machines(("v1", "v2", "v3", "v4"))) == ("runs v1, v2, v3 and 1 more",)
    assert reasons(machines=Machines(fault="no answer")) == (
        "its machines are not known: no answer",
    )
    assert reasons(reserved=["a"]) == ("reserved (guard.toml)",)
    assert reasons(twins={"a": "b"}) == ("the same machine as b",)
    # Below 1 %, not at it; each by itself.
    assert reasons(of_load=Load("a", 1.0, 0, 0, 1)) == ("processor 1.0 %, the limit is 1 %",)
    assert reasons(of_load=Load("a", 0, 7.25, 0, 1)) == ("memory 7.2 %, the limit is 1 %",)
    assert reasons(of_load=Load("a", 0, 0, 30, 1)) == ("disk 30.0 %, the limit is 1 %",)
    assert reasons(of_load=Load("a", 0, 0, 0, 0.5)) == (
        "samples cover 50 % of the last 30 minutes, 90 % are needed",
    )
    assert reasons(of_load=Load("a", 0, 0, None, 1, "no disk is told")) == (
        "load of disk is not known: no disk is told",
    )
    assert reasons(states_after([FAILING, FAILING], Rule())[-1]) == (
        "failing: memory/mc0: failing",
    )
    assert reasons(states_after([OK, UNKNOWN], Rule())[-1]) == ("unknown now: edac: unknown",)
    assert reasons(states_after([UNKNOWN], Rule())[-1]) == ("its health is unknown",)
    assert choose(["z"], {}, {}, {}, SpareRule())[0].reasons == (
        "its health is unknown",
        "its machines are not known: its machines were not counted",
        "load of processor, memory, disk is not known: its load was not read",
    )


def test_the_least_loaded_spare_comes_first() -> None:
    loads = {name: Load(name, value, 0, 0, 1) for name, value in [("a", 0.5), ("b", 0.1), ("c", 5)]}
    machines = {name: Machines() for name in loads}
    states = {name: healthy(name) for name in loads}
    found = choose(list("cab"), states, loads, machines, SpareRule())
    assert [(one.host, one.is_spare) for one in found] == [("b", True), ("a", True), ("c", False)]


def sample(at: float, busy: int = 0, used: int = 100, disk: int = 0, boot: str = "x") -> Sample:
    total = int(at * 100)
    return Sample(at, at, boot, total, total - busy, 1000, used, {"sda": disk, "sdb": 0})


def test_window_of_samples() -> None:
    whole = [sample(at, busy=at // 2, used=150, disk=at * 20) for at in range(0, 1801, 60)]
    found = mean("a", whole, 0, 1800, idle=100)
    assert (found.cpu, found.memory, found.io) == pytest.approx((0.5, 5.0, 2.0), rel=0.02)
    assert found.coverage == 1
    # The load of the time before the window is none of its business.
    assert (
        mean("a", [sample(0), sample(60, busy=6000), sample(120, busy=6000)], 60, 120, 0).cpu == 0
    )
    # A gap is not covered, nor is a boot.
    assert (
        mean("a", [sample(0), sample(100), sample(1000), sample(1100)], 0, 2000, 0).coverage == 0.1
    )
    assert (
        mean("a", [sample(0), sample(100, boot="y"), sample(200, boot="y")], 0, 200, 0).coverage
        == 0.5
    )
    assert mean("a", [sample(0)], 0, 1800, 0).cpu is None
    assert mean("a", [], 0, 1800, 0).text.startswith("too few samples")
    # Counters that went back, and a clock that did.
    assert mean("a", [sample(10, busy=500), sample(20, busy=0)], 0, 20, 0).cpu == 0
    assert mean("a", [sample(20), sample(10)], 0, 20, 0).cpu is None
    assert covered([0, 100, 500, 600], 0, 1000) == 0.2


def tree(root: Path, files: Mapping[str, str]) -> HostFiles:
    """A host that is a folder."""
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if "/bin/" in f"/{name}":
            path.chmod(0o755)
    return HostFiles(Host("a", "processes", None), root=str(root))


@pytest.fixture
def past(tmp_path: Path) -> Any:
    file = PastFile(tmp_path / "past" / "a.db")
    yield file
    file.close()


def said(
    name: str, host: HostFiles, past: PastFile, at: float = 1000, **options: Any
) -> dict[str, Reading]:
    """What the source of that entry point says, by item; it is kept, as in a round."""
    settings = Settings(sources={name: options})
    sources = registry.sources(settings, Context(past), "guard.toml")
    readings = asyncio.run(round.read(sources, [host], at))
    past.take(readings, round.rules(sources, settings.hysteresis))
    return {one.item: one for one in readings}


def test_files_of_a_host(tmp_path: Path) -> None:
    host = tree(tmp_path / "it's [a] root", {
        "/sys/mc0/count": "3\n", "/sys/mc1/count": "4\nand: more\n", "/sys/mc1/deep/er/count": "5",
        "/sys/0000:00:01.0/x": "a:b\n", "/sys/empty": "",
    })  # fmt: skip
    (tmp_path / "it's [a] root/sys/folder").mkdir()

    async def ask() -> list[Mapping[str, str]]:
        return list(await asyncio.gather(
            host.read("/sys/mc*/count", "/sys/gone"), host.read("/sys/empty"), host.read("/sys/*/x"),
            host.read("/sys/folder", "/sys/$(touch pwned)"),
        ))  # fmt: skip

    counts, empty, colon, nothing = asyncio.run(ask())
    assert counts == {"/sys/mc0/count": "3", "/sys/mc1/count": "4\nand: more"}
    assert (empty, colon, nothing) == ({"/sys/empty": ""}, {"/sys/0000:00:01.0/x": "a:b"}, {})
    assert host.ahead == 0


def test_sources_share_one_command(tmp_path: Path, past: PastFile) -> None:
    host = tree(tmp_path, {})
    asked = []
    ask = host._ask

    async def counted(words: Sequence[str]) -> Any:
        asked.append(words)
        return await ask(words)

    host._ask = counted  # type: ignore[method-assign]
    sources = registry.sources(Settings(), Context(past), "guard.toml")
    assert len(asyncio.run(round.read(sources, [host], 1))) >= len(sources)
    assert len(asked) == 1


@pytest.mark.parametrize("out", ["", "welcome!\n", "1.5\n", "1.5\n\0a\0x\n"])
def test_a_host_that_prints_something_else(out: str) -> None:
    with pytest.raises(HostError, match="host a: its answer is not whole"):
        HostFiles(Host("a", "processes", None))._understood(out, 0, 1)


def test_clock(tmp_path: Path, past: PastFile) -> None:
    host = tree(tmp_path, {})
    assert said("clock", host, past)["clock/system"].level is OK
    host._understood("90.0\n\0\0end", 100, 101)
    assert host.ahead == -10
    host._understood("100.5\n\0\0end", 100, 101)
    assert host.ahead == 0
    host._understood("200.0\n\0\0end", 100, 101)
    assert host.ahead == 99


def test_administrators_file(tmp_path: Path, past: PastFile) -> None:
    host = tree(tmp_path, {})
    assert said("file", host, past)["administrator/file"].level is OK
    tree(tmp_path, {"/etc/ivc/warning": ""})
    found = said("file", host, past)["administrator/file"]
    assert (found.level, found.text) == (WARNING, "/etc/ivc/warning is there")
    tree(tmp_path, {"/etc/ivc/failing": "fan 3 rattles\nmore\n"})
    found = said("file", host, past)["administrator/file"]
    assert (found.level, found.text) == (FAILING, "fan 3 rattles")
    # At once, and over when he takes it away.
    rules = {"file": Rule(1, None, latches=False)}
    assert judge(["a"], past.states(), rules)["a"].level is FAILING
    assert said("file", host, past, failing="/x", warning="/y")["administrator/file"].level is OK


def edac(corrected: int, uncorrected: int) -> dict[str, str]:
    mc = "/sys/devices/system/edac/mc/mc0"
    return {
        f"{mc}/ce_count": f"{corrected}\n",
        f"{mc}/ue_count": f"{uncorrected}\n",
        f"{mc}/dimm1/dimm_ce_count": f"{corrected}\n",
        f"{mc}/dimm1/dimm_ue_count": f"{uncorrected}\n",
        f"{mc}/dimm1/dimm_label": "CPU0_B1\n",
        f"{mc}/dimm0/dimm_ce_count": "0\n",
    }


def test_edac(tmp_path: Path, past: PastFile) -> None:
    host = tree(tmp_path, {})
    assert said("edac", host, past)[""].level is UNKNOWN
    found = said("edac", tree(tmp_path, edac(500, 0)), past, at=1000)
    assert {item: one.level for item, one in found.items()} == {
        "memory/mc0/uncorrected": OK,
        "memory/mc0/corrected": OK,  # of the time before nobody knows how fast they came
    }
    found = said("edac", tree(tmp_path, edac(509, 0)), past, at=1100)
    assert found["memory/mc0/corrected"].level is OK
    found = said("edac", tree(tmp_path, edac(510, 0)), past, at=1200)
    assert found["memory/mc0/corrected"].level is WARNING
    assert found["memory/mc0/corrected"].text == (
        "10 corrected errors (most in CPU0_B1) within an hour, 510 in all"
    )
    # An hour later they have stopped; after a boot the counter begins anew.
    assert said("edac", host, past, at=5000)["memory/mc0/corrected"].level is OK
    found = said("edac", tree(tmp_path, edac(12, 1)), past, at=5001)
    assert found["memory/mc0/corrected"].text.startswith("12 corrected errors")
    assert found["memory/mc0/corrected"].level is WARNING
    assert found["memory/mc0/uncorrected"].level is FAILING
    assert (
        "1 uncorrected errors since boot (most in CPU0_B1)" in found["memory/mc0/uncorrected"].text
    )
    garbage = dict.fromkeys(edac(0, 0), "what?\n")
    assert said("edac", tree(tmp_path, garbage), past)["memory/mc0"].level is UNKNOWN


def test_thermal(tmp_path: Path, past: PastFile) -> None:
    assert said("thermal", tree(tmp_path, {}), past)[""].level is UNKNOWN
    cpu, chip = "/sys/devices/system/cpu", "/sys/class/hwmon/hwmon2"
    files = {
        f"{cpu}/cpu0/thermal_throttle/core_throttle_count": "1\n",
        f"{cpu}/cpu1/thermal_throttle/package_throttle_count": "2\n",
        f"{chip}/name": "coretemp\n",
        f"{chip}/temp1_input": "45000\n",
        f"{chip}/temp1_crit": "100000\n",
        f"{chip}/temp1_label": "Package id 0\n",
        f"{chip}/temp2_input": "101000\n",
        f"{chip}/temp2_crit": "100000\n",
        f"{chip}/temp3_input": "50000\n",  # no limit
        f"{chip}/temp4_input": "50000\n",
        f"{chip}/temp4_crit": "0\n",  # no real one
    }
    found = said("thermal", tree(tmp_path, files), past, at=0)
    assert {item: one.level for item, one in found.items()} == {
        "temperature/throttling": OK,
        "temperature/coretemp/2/Package id 0": OK,
        "temperature/coretemp/2/temp2": FAILING,
    }
    files[f"{cpu}/cpu0/thermal_throttle/core_throttle_count"] = "11\n"
    found = said("thermal", tree(tmp_path, files), past, at=60)
    assert found["temperature/throttling"].level is WARNING


def test_links(tmp_path: Path, past: PastFile) -> None:
    net, port = "/sys/class/net", "/sys/class/infiniband/mlx5_0/ports/1"
    files = {
        f"{net}/eth0/device/uevent": "",
        f"{net}/eth0/carrier_changes": "2\n",
        f"{net}/eth0/statistics/rx_errors": "7\n",
        f"{net}/eth0/statistics/rx_crc_errors": "7\n",
        f"{net}/br0/carrier_changes": "900\n",
        f"{port}/counters/symbol_error": "0\n",
        f"{port}/counters/link_downed": "0\n",
    }
    found = said("links", tree(tmp_path, files), past, at=0)
    assert set(found) == {"link/eth0/errors", "link/eth0/changes", "link/mlx5_0.1/errors",
                          "link/mlx5_0.1/changes"}  # fmt: skip
    assert {one.level for one in found.values()} == {OK}
    assert found["link/eth0/errors"].value == 7  # of which one includes the other
    files |= {f"{net}/eth0/statistics/rx_crc_errors": "107\n", f"{net}/eth0/carrier_changes": "6\n",
              f"{port}/counters/symbol_error": "10\n", f"{port}/counters/link_downed": "3\n"}  # fmt: skip
    found = said("links", tree(tmp_path, files), past, at=60)
    assert {item: one.level for item, one in found.items()} == {
        "link/eth0/errors": WARNING,
        "link/eth0/changes": WARNING,
        "link/mlx5_0.1/errors": WARNING,
        "link/mlx5_0.1/changes": OK,
    }
    assert said("links", tree(tmp_path / "bare", {}), past)[""].level is UNKNOWN


def test_aer(tmp_path: Path, past: PastFile) -> None:
    device = "/sys/bus/pci/devices/0000:3b:00.0"
    files = {
        f"{device}/aer_dev_correctable": "RxErr 4\nBadTLP 0\nTOTAL_ERR_COR 4\n",
        f"{device}/aer_dev_nonfatal": "Undefined 0\nTOTAL_ERR_NONFATAL 0\n",
        f"{device}/aer_dev_fatal": "Undefined 0\nTOTAL_ERR_FATAL 0\n",
    }
    found = said("aer", tree(tmp_path, files), past, at=0)
    assert {one.level for one in found.values()} == {OK} and len(found) == 3
    files = {
        f"{device}/aer_dev_correctable": "RxErr 104\nTOTAL_ERR_COR 104\n",
        f"{device}/aer_dev_nonfatal": "TOTAL_ERR_NONFATAL 1\n",
        f"{device}/aer_dev_fatal": "TOTAL_ERR_FATAL 1\n",
    }
    found = said("aer", tree(tmp_path, files), past, at=60)
    assert {item.rsplit("/", 1)[1]: one.level for item, one in found.items()} == {
        "correctable": WARNING, "nonfatal": WARNING, "fatal": FAILING,
    }  # fmt: skip
    assert said("aer", tree(tmp_path / "bare", {}), past)[""].level is UNKNOWN


def proc(at: int, busy: int, used: int, io: int) -> dict[str, str]:
    """With 2 processors of which BUSY ticks were busy, kB USED, and a disk busy for IO ms."""
    idle = 200 * at - busy
    return {
        "/proc/stat": f"cpu  {busy} 0 0 {idle} 0 0 0 0 0 0\ncpu0 1 2 3\nintr 1\n",
        "/proc/meminfo": f"MemTotal: 1000000 kB\nMemFree: 1 kB\nMemAvailable: {1000000 - used} kB\n",
        "/proc/uptime": f"{at}.00 1.00\n",
        "/proc/sys/kernel/random/boot_id": "one\n",
        "/sys/block/sda/device/uevent": "",
        "/sys/block/sda/stat": f"1 2 3 4 5 6 7 8 9 {io} 11\n",
        "/sys/block/dm-0/stat": "1 2 3 4 5 6 7 8 9 999999\n",
    }


def test_load_from_proc(tmp_path: Path, past: PastFile) -> None:
    host = tree(tmp_path, {})
    source = ProcLoad("proc", Options(), LoadContext(past))

    def ask(at: int, **counters: int) -> Load:
        tree(tmp_path, proc(at, **counters))
        source.context.at = at
        return asyncio.run(source.load([host], 600))[0]

    assert ask(1000, busy=0, used=50000, io=0).text.startswith("too few samples")
    found = ask(1300, busy=600, used=50000, io=3000)
    assert (found.cpu, found.memory, found.io, found.coverage) == pytest.approx(
        (1.0, 0.0, 1.0, 0.5)
    )
    found = ask(1600, busy=600, used=90000, io=3000)
    assert (found.cpu, found.memory, found.io, found.coverage) == pytest.approx(
        (0.5, 1.0, 0.5, 1.0)
    )
    # An administrator knows better what is idle.
    host.settings = HostSettings(idle_memory=30000 << 10)
    assert ask(1601, busy=600, used=90000, io=3000).memory == pytest.approx(3.007, abs=0.001)
    (tmp_path / "proc/meminfo").unlink()
    source.context.at = 1700
    assert asyncio.run(source.load([host], 600))[0].text == "host a: it has no /proc/meminfo"


class Broken(Source[Options]):
    async def read(self, hosts: Sequence[HostFiles]) -> list[Reading]:
        if self.name == "slow":
            await asyncio.sleep(60)
        if self.name == "wild":
            raise KeyError("x")
        if self.name == "silent":
            return []
        return [Reading("somebody else", "edac", "a/b", FAILING, ""),
                Reading("a", "edac", "a/b", OK, "", value=float("nan"))]  # fmt: skip


def test_a_bad_source_spoils_no_other(
    tmp_path: Path, past: PastFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(round, "_GRACE_SECONDS", 0.0)
    host = tree(tmp_path, {})
    names = ["slow", "wild", "silent", "liar"]
    sources: list[Source[Any]] = [
        Broken(name, Options(timeout=0.2), Context(past)) for name in names
    ]
    sources += registry.sources(Settings(sources={"file": {}}), Context(past), "guard.toml")
    readings = asyncio.run(round.read(sources, [host], 7))
    assert {one.host for one in readings} == {"a"}
    found = {one.source: one for one in readings}
    assert {name: (one.level, one.text) for name, one in found.items()} == {
        "slow": (UNKNOWN, "no answer within 0.2 s"),
        "wild": (UNKNOWN, "a defect of this source: KeyError: 'x'"),
        "silent": (UNKNOWN, "it says nothing of this host"),
        "liar": (OK, ""),  # of its own name and hosts only, and without what is no number
        "file": (OK, "no administrator has marked it"),
    }
    assert found["liar"].value is None and {one.at for one in found.values()} == {7}


def test_a_host_that_is_not_reached(past: PastFile) -> None:
    host = HostFiles(Host("a", "processes", None, ssh=("-p", "1", "nobody@127.0.0.1")))
    for one in said("edac", host, past).values():
        assert one.level is UNKNOWN and one.text.startswith("host a is not reached: ")


def test_twins() -> None:
    hosts = [HostFiles(Host(name, "processes", None, ssh=(name,))) for name in "abc"]
    for host, boot in zip(hosts, ("x", "y", "x"), strict=True):
        host.boot_id = boot
    assert round.twins(hosts) == {"c": "a"}
    here = [HostFiles(Host(name, "processes", None)) for name in "ab"]
    for host in here:
        host.boot_id = "x"
    assert round.twins(here) == {}


def test_what_is_kept(tmp_path: Path, past: PastFile) -> None:
    rules = {"edac": Rule()}
    for at, value in [(0, 5), (100, 5), (200, 6), (300, 9)]:
        past.take([Reading("a", "edac", "m/0", WARNING, "", value, at=at)], rules)
    ask = ("a", "edac", "m/0")
    assert [past.value_before(*ask, at) for at in (-1, 0, 150, 250, 999)] == [5, 5, 5, 6, 9]
    assert past.value_before("b", "edac", "m/0", 9) is None
    assert [one.item for one in past.last("a", "edac")] == ["m/0"]
    assert past.last("a", "file") == [] and past.last("b", "edac") == []
    # Two days later one value before them is enough.
    past.take([Reading("a", "edac", "m/0", OK, "", 10, at=500000)], rules)
    assert past.value_before(*ask, 400000) == 9 and past.value_before(*ask, 250) == 9
    again = PastFile(tmp_path / "past" / "a.db")
    assert again.states() == past.states() and len(again.states()) == 1
    assert again.clear("a") == 1 and past.states() == {}
    again.close()
    assert [past.idle_memory("a", boot, used) for boot, used in
            [("x", 50), ("x", 70), ("x", 40), ("y", 60)]] == [50, 50, 40, 60]  # fmt: skip


def test_a_state_file_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "spoiled").write_text("not a database at all, " * 100)
    with pytest.raises(HealthError, match="cannot keep what was read in .*spoiled: file is not a"):
        PastFile(tmp_path / "spoiled")
    with pytest.raises(HealthError, match="cannot keep"):
        PastFile(tmp_path / "spoiled" / "below")
    assert file_for(Path("/etc/ivc/hosts.toml")) == Path("/var/lib/ivc/guard/etc-ivc-hosts.db")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("colour = 1", "colour: no such key; it may have guard, hosts, hysteresis, load, sources, state"),
        ("[load]\nwindow = '1'", "load.window: input should be a valid number"),
        ("[load]\nlimit = 0", "load.limit: input should be greater than 0"),
        ("[hysteresis]\nconfirm = 0", "hysteresis.confirm: input should be greater than or equal to 1"),
        ("[hosts.a]\nalias = []", "hosts.a.alias: no such key; it may have aliases, bmc, idle_memory"),
        ("[hosts.a.bmc]\nx = 1", "hosts.a.bmc.x: no such key; it may have ca_file, ipmi"),
        ("[hosts.q]\n", "hosts.q: the inventory has no such host; it has a, b"),
        ("[hosts.a]\naliases=['b']", "hosts.a.aliases: b is b as well; give each name to one host"),
        ("[sources.x]", "sources.x: there is no source x; known: aer, "),
        ("[sources.edac]\nx = 1", "sources.edac.x: no such key; it may have corrected_per_hour, timeout"),
        ("[sources.edac]\ncorrected_per_hour = -1", "sources.edac.corrected_per_hour: input should be"),
        ("[load]\nsource = 'x'", "load.source: there is no source x; known: proc, prometheus"),
        ("[load.options]\nx = 1", "load.options.x: no such key; it may have timeout"),
        ("= 1", "not TOML: "),
    ],
)  # fmt: skip
def test_faults_of_the_settings(tmp_path: Path, past: PastFile, text: str, said: str) -> None:
    file = tmp_path / "guard.toml"
    file.write_text(text)
    with pytest.raises(SettingsError) as fault:
        settings = load(file, ["a", "b"])
        registry.sources(settings, Context(past), str(file))
        registry.load_source(settings, LoadContext(past), str(file))
    assert str(fault.value).startswith(f"{file}: {said}")


def test_no_settings_are_the_default_ones(tmp_path: Path) -> None:
    assert load(tmp_path / "none.toml", ["a"]) == Settings()


def test_an_inventory_that_names_a_host_twice(tmp_path: Path) -> None:
    file = tmp_path / "hosts.toml"
    table = '[hosts.{0}]\nssh = "root@{1}"\nqmp = "/run/{{vm}}.qmp"\n'
    file.write_text(table.format("a", "one") + table.format("b", "two"))
    assert set(load_inventory(file).hosts) == {"a", "b"}
    file.write_text(table.format("a", "one") + table.format("b", "one"))
    with pytest.raises(InventoryError, match="a and b are one host, reached in the same way"):
        load_inventory(file)
    file.write_text(table.format("a", "one") * 2)
    with pytest.raises(InventoryError, match="not TOML: Cannot declare"):
        load_inventory(file)


def test_what_was_said_last_is_looked_up(past: PastFile) -> None:
    """Asked for each host, so the states of the others are not read: 1,000 hosts were 1,000,000."""
    rules = {"webhook": Rule()}
    past.take([Reading(f"h{n}", "webhook", "alert/hot", WARNING, "", at=0) for n in range(1000)], rules)
    begin = time.process_time()
    found = [one.host for n in range(1000) for one in past.last(f"h{n}", "webhook")]
    assert found == [f"h{n}" for n in range(1000)]
    assert time.process_time() - begin < 2


class Site:
    """An inventory with its settings, and the command."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hosts('[hosts.a]\nqmp = "FOLDER/{vm}.qmp"\n')
        self.settings("")

    def hosts(self, text: str) -> None:
        (self.folder / "hosts.toml").write_text(text.replace("FOLDER", str(self.folder)))

    def settings(self, text: str) -> None:
        file = f'[sources.file]\nfailing = "{self.folder}/failing"\nwarning = "{self.folder}/warning"\n'
        text = f'state = "{self.folder}/past.db"\n{text}\n{file}'
        (self.folder / "guard.toml").write_text(text)

    def guard(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "ivc_host", "guard", *words],
            capture_output=True, text=True, timeout=60,
            env={**os.environ, "IVC_INVENTORY": str(self.folder / "hosts.toml"), "COLUMNS": "300"},
        )  # fmt: skip


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_the_command(site: Site) -> None:
    assert site.guard("health").returncode == 0
    (site.folder / "warning").touch()
    assert site.guard("health").returncode == 4
    (site.folder / "failing").write_text("smells\n")
    done = site.guard("health")
    assert done.returncode == 3 and "file: administrator/file: smells" in done.stdout
    data = json.loads(site.guard("health", "a", "--json").stdout)
    assert data[0]["level"] == "failing" and data[0]["items"][0]["text"] == "smells"
    assert "a: failing since 2" in site.guard("health", "a").stdout
    done = site.guard("spares")
    assert done.returncode == 3 and "failing: administrator/file: smells" in done.stdout
    assert "a: failing: file: administrator/file: smells" in site.guard("record").stdout
    assert site.guard("clear", "a").returncode == 0
    done = site.guard("health", "q")
    assert done.returncode == 2 and "there is no host q; it has a" in done.stderr
    done = site.guard("health", "--config", "/none")
    assert done.returncode == 2 and "settings /none: no such file" in done.stderr


def test_a_spare_but_for_what_the_test_machine_does(site: Site) -> None:
    site.settings("[load]\nwindow = 1.0\nlimit = 100\ncoverage = 0.5")
    assert site.guard("record").returncode == 0
    time.sleep(1)
    done = site.guard("spares", "--json")
    (found,) = json.loads(done.stdout)
    assert [text for text in found["reasons"] if "the limit is 100 %" not in text] == [], found
    assert found["spare"] == (not found["reasons"])
    assert done.returncode == (0 if found["spare"] else 3)
    assert 0 <= found["load"]["cpu"] <= 100 and found["load"]["coverage"] >= 0.5


def test_hosts_that_are_not_reached_are_unknown(site: Site) -> None:
    site.hosts('[hosts.a]\nqmp = "FOLDER/{vm}.qmp"\nssh = ["-p", "1", "nobody@127.0.0.1"]\n')
    done = site.guard("health")
    assert done.returncode == 5 and "host a is not reached: ssh: connect" in done.stdout
    done = site.guard("spares")
    assert done.returncode == 3 and "its health is unknown" in done.stdout


def test_record_goes_on(site: Site) -> None:
    (site.folder / "warning").touch()
    command = [sys.executable, "-m", "ivc_host", "guard", "record", "--every", "1"]
    env = {**os.environ, "IVC_INVENTORY": str(site.folder / "hosts.toml")}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        process.terminate()
        assert process.wait(20) == 143
    bad = "a: warning: file: administrator/file"
    assert bad in lines[0] and "a: load: too few samples" in lines[1] and bad in lines[2]
