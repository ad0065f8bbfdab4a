"""Sources that read what other programs write: smartctl, rasdaemon, ipmitool, Redfish."""

from __future__ import annotations

import datetime
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ivc_host.health.contract import Context, Level
from ivc_host.health.hostfiles import HostFiles
from ivc_host.health.past import PastFile
from ivc_host.health.settings import Bmc, HostSettings
from ivc_host.health.sources.ipmi import IpmiOptions, IpmiSource, words_for
from ivc_host.hypervisor.host import Host
from test_health import said, tree
from test_health_servers import canned

OK, WARNING, FAILING, UNKNOWN = Level.OK, Level.WARNING, Level.FAILING, Level.UNKNOWN


@pytest.fixture
def past(tmp_path: Path) -> Iterator[PastFile]:
    file = PastFile(tmp_path / "past.db")
    yield file
    file.close()


def disks(root: Path, **answers: Any) -> HostFiles:
    """A host whose smartctl finds these disks, with these answers."""
    devices = [{"name": f"/dev/{name}", "type": "sat"} for name in answers]
    files = {"/scan": json.dumps({"devices": devices})}
    files |= {f"/dev/{name}": json.dumps(answer) for name, answer in answers.items()}
    files["/bin/smartctl"] = (
        f'#!/bin/sh\ncase $1 in --scan-open) cat "{root}/scan" ;;'
        f' *) for last; do :; done; cat "{root}$last" ;; esac\nexit 64\n'
    )
    return tree(root, files)


def ata(passed: bool, **sectors: int) -> dict[str, Any]:
    ids = {"reallocated": 5, "pending": 197, "uncorrectable": 198}
    table = [{"id": ids[name], "raw": {"value": value}} for name, value in sectors.items()]
    table.append({"id": 194, "raw": {"value": 34}})
    return {"smart_status": {"passed": passed}, "ata_smart_attributes": {"table": table}}


def nvme(warning: int, errors: int = 0, used: int = 3) -> dict[str, Any]:
    log = {"critical_warning": warning, "media_errors": errors, "percentage_used": used}
    return {"smart_status": {"passed": not warning}, "nvme_smart_health_information_log": log}


def levels(found: dict[str, Any]) -> dict[str, Level]:
    return {item: one.level for item, one in found.items()}


def test_smart(tmp_path: Path, past: PastFile) -> None:
    usb = {"smartctl": {"messages": [{"string": "Unknown USB bridge"}], "exit_status": 1}}
    scsi = {"smart_status": {"passed": True}, "scsi_grown_defect_list": 3}
    host = disks(tmp_path, sda=ata(True, reallocated=8), nvme0=nvme(0), sdb=usb, sdc=scsi)
    found = said("smart", host, past, at=0)
    assert levels(found) == {
        "disk/sda/status": OK,
        "disk/sda/reallocated": OK,  # old ones, which do not grow
        "disk/nvme0/status": OK,
        "disk/nvme0/critical": OK,
        "disk/nvme0/media": OK,
        "disk/nvme0/wear": OK,
        "disk/sdb": UNKNOWN,
        "disk/sdc/status": OK,
        "disk/sdc/defects": OK,
    }
    assert found["disk/sdb"].text == "Unknown USB bridge"
    host = disks(tmp_path, sda=ata(False, reallocated=9), nvme0=nvme(0x04, errors=1, used=100))
    found = said("smart", host, past, at=3600)
    assert levels(found) == {
        "disk/sda/status": FAILING,
        "disk/sda/reallocated": WARNING,
        "disk/nvme0/status": FAILING,
        "disk/nvme0/critical": FAILING,
        "disk/nvme0/media": WARNING,
        "disk/nvme0/wear": WARNING,
    }
    assert found["disk/nvme0/critical"].text == "reliability is degraded"
    found = said("smart", disks(tmp_path, nvme0=nvme(0x02)), past, at=3700)
    assert found["disk/nvme0/critical"].level is WARNING


def test_smart_that_does_not_answer(tmp_path: Path, past: PastFile) -> None:
    assert (
        said("smart", disks(tmp_path / "none"), past)[""].text
        == "smartctl finds no disk that tells"
    )
    host = tree(tmp_path / "bad", {"/bin/smartctl": "#!/bin/sh\necho oh no >&2; exit 1\n"})
    assert said("smart", host, past)[""].text == "host a: smartctl: oh no"
    host = disks(tmp_path / "odd", sda=[1, 2])
    assert said("smart", host, past)[""].text == "host a: not what smartctl prints"
    host = tree(tmp_path / "slow", {"/bin/smartctl": "#!/bin/sh\nsleep 60\n"})
    assert "0.3 s" in said("smart", host, past, timeout=0.3)[""].text


#: As rasdaemon makes them, with the columns that matter.
_TABLES = """
CREATE TABLE mc_event (id INTEGER PRIMARY KEY, timestamp TEXT, err_count INTEGER, err_type TEXT,
    err_msg TEXT, label TEXT, mc INTEGER);
CREATE TABLE aer_event (id INTEGER PRIMARY KEY, timestamp TEXT, dev_name TEXT, err_type TEXT,
    err_msg TEXT);
CREATE TABLE mce_record (id INTEGER PRIMARY KEY, timestamp TEXT, status INTEGER, error_msg TEXT);
"""


def recorded(root: Path, *events: tuple[Any, ...], tables: str = _TABLES) -> str:
    """A database with events: hours ago, table, and the rest of its columns."""
    root.mkdir(exist_ok=True)
    path = root / "ras.db"
    path.unlink(missing_ok=True)
    base = sqlite3.connect(path)
    base.executescript(tables)
    for hours, table, columns in events:
        zone = datetime.timezone(datetime.timedelta(hours=-7))
        at = datetime.datetime.now(zone) - datetime.timedelta(hours=hours)
        columns = {"timestamp": at.strftime("%Y-%m-%d %H:%M:%S %z"), **columns}
        marks = ", ".join("?" * len(columns))
        base.execute(
            f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", list(columns.values())
        )
    base.commit()
    base.close()
    return str(path)


def memory(kind: str, count: int) -> dict[str, Any]:
    return {"err_type": kind, "err_count": count}


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([], {"memory": OK, "pci": OK, "processor": OK}),
        ([(1, "mc_event", memory("Corrected", 49))], {"memory": OK}),
        ([(3, "mc_event", memory("Corrected", 25)), (1, "mc_event", memory("Corrected", 25))],
         {"memory": WARNING}),
        ([(25, "mc_event", memory("Uncorrected", 1)), (1, "mc_event", memory("Info", 99))],
         {"memory": OK}),
        ([(23, "mc_event", memory("Uncorrected", 1))], {"memory": FAILING}),
        ([(1, "mc_event", memory("Fatal", 1))], {"memory": FAILING}),
        ([(1, "aer_event", {"err_type": "Uncorrected (Fatal)"})], {"pci": FAILING, "memory": OK}),
        ([(1, "aer_event", {"err_type": "Uncorrected (Non-Fatal)"})], {"pci": WARNING}),
        ([(1, "mce_record", {"status": -(1 << 63) | 1 << 61})], {"processor": FAILING}),
        ([(1, "mce_record", {"status": -(1 << 63)})], {"processor": OK}),
    ],
)  # fmt: skip
def test_rasdaemon(
    tmp_path: Path, past: PastFile, events: list[Any], expected: dict[str, Level]
) -> None:
    path = recorded(tmp_path, *events)
    found = said("rasdaemon", HostFiles(Host("a", "processes", None)), past, database=path)
    assert set(found) == {f"{kind}/rasdaemon" for kind in ("memory", "pci", "processor")}
    for kind, level in expected.items():
        assert found[f"{kind}/rasdaemon"].level is level, found


def test_rasdaemon_that_is_not_there(tmp_path: Path, past: PastFile) -> None:
    host = HostFiles(Host("a", "processes", None))
    found = said("rasdaemon", host, past, database=str(tmp_path / "none.db"))[""]
    assert found.level is UNKNOWN and found.text.endswith("unable to open database file")
    path = recorded(tmp_path / "empty", tables="")
    assert (
        said("rasdaemon", host, past, database=path)[""].text == f"{path} has no table of rasdaemon"
    )
    (tmp_path / "spoiled").write_text("x" * 4096)
    found = said("rasdaemon", host, past, database=str(tmp_path / "spoiled"))[""]
    assert found.level is UNKNOWN and "file is not a database" in found.text


def ipmi(past: PastFile) -> IpmiSource:
    return IpmiSource("ipmi", IpmiOptions(), Context(past))


def test_sensors_of_ipmitool(past: PastFile) -> None:
    lines = ["Temp1,48,degrees C,ok", "Fan/2,0,RPM,lnr", "12V,11.1,Volts,nc", "PSU,0x01,discrete,ok",
             "Old,no reading,,ns", "garbage", ""]  # fmt: skip
    found = {one.item: one for one in ipmi(past).sensors(HostFiles(Host("a", "processes", None)), lines)}
    assert levels(found) == {"temperature/Temp1": OK, "fan/Fan 2": FAILING, "voltage/12V": WARNING,
                             "sensor/PSU": OK}  # fmt: skip
    assert found["fan/Fan 2"].text == "0 RPM, beyond its limit (lnr)"


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("1,11/29/26,12:00:00 UTC,Memory #0x05,Uncorrectable ECC,Asserted", FAILING),
        ("1,11/29/2026,12:00:00,Memory #0x05,Correctable ECC,Asserted", WARNING),
        ("1,11/29/26,12:00:00 UTC,Memory #0x05,Uncorrectable ECC,Deasserted", OK),
        ("1,11/27/26,12:00:00 UTC,Memory #0x05,Uncorrectable ECC,Asserted", OK),
        ("1,11/29/26,12:00:00 UTC,Power Supply #1,Failure detected,Asserted", WARNING),
        ("1,11/29/26,12:00:00 UTC,Event Logging Disabled #1,Log area reset/cleared,Asserted", OK),
        ("1,Pre-Init,0000000012,Memory #0x05,Uncorrectable ECC,Asserted", OK),
        ("SEL has no entries", OK),
    ],
)
def test_event_log_of_ipmitool(past: PastFile, line: str, level: Level) -> None:
    one = ipmi(past).events(HostFiles(Host("a", "processes", None)), [line], "11/29/26 13:00:00 UTC")
    assert one.level is level


def test_words_of_ipmitool(tmp_path: Path, past: PastFile) -> None:
    assert words_for(Bmc()) == ["ipmitool", "-c"]
    words = words_for(Bmc(ipmi="bmc1", user="u", password_file="/etc/ivc/bmc"))
    assert words[-8:] == ["-H", "bmc1", "-p", "623", "-U", "u", "-f", "/etc/ivc/bmc"]
    # Without an address the host's own interface is asked, by its own ipmitool.
    script = '#!/bin/sh\ncase "$*" in *sdr*) echo T,20,degrees C,ok ;; *time*) echo 11/29/26 1:02:03 ;; esac\n'
    found = said("ipmi", tree(tmp_path, {"/bin/ipmitool": script}), past)
    assert levels(found) == {"temperature/T": OK, "log/sel": OK}
    script = "#!/bin/sh\necho Could not open device at /dev/ipmi0 >&2; exit 1\n"
    found = said("ipmi", tree(tmp_path, {"/bin/ipmitool": script}), past)
    assert found[""].text == "ipmitool of a: Could not open device at /dev/ipmi0"


def redfish(**changes: Any) -> dict[str, tuple[int, str]]:
    """The shape of the standard's mock-ups: a system, a chassis with sensors."""
    ok = {"State": "Enabled", "Health": "OK", "HealthRollup": "OK"}
    pages: dict[str, Any] = {
        "/redfish/v1/": {
            "Systems": {"@odata.id": "/redfish/v1/Systems"},
            "Chassis": {"@odata.id": "/redfish/v1/Chassis"},
        },
        "/redfish/v1/Systems": {"Members": [{"@odata.id": "/redfish/v1/Systems/1"}]},
        "/redfish/v1/Systems/1": {"Id": "1", "Status": ok, "MemorySummary": {"Status": ok}},
        "/redfish/v1/Chassis": {"Members": [{"@odata.id": "/redfish/v1/Chassis/1U"}]},
        "/redfish/v1/Chassis/1U": {
            "Id": "1U", "Status": {"State": "Enabled", "Health": "OK"},
            "Thermal": {"@odata.id": "/redfish/v1/Chassis/1U/Thermal"},
        },
        "/redfish/v1/Chassis/1U/Thermal": {
            "Temperatures": [{"Name": "CPU1", "ReadingCelsius": 41, "Status": ok}],
            "Fans": [{"Name": "Fan1", "Status": ok}, {"Name": "Fan2", "Status": {"State": "Absent"}}],
        },
    }  # fmt: skip
    for path, change in changes.items():
        pages[path.replace("_", "/")] |= change
    return {path: (200, json.dumps(page)) for path, page in pages.items()}


def asked(pages: dict[str, tuple[int, str]], past: PastFile) -> dict[str, Any]:
    with canned(pages) as server:
        host = HostFiles(Host("a", "processes", None), HostSettings(bmc=Bmc(redfish=server.url)))
        return said("redfish", host, past)


def test_redfish(past: PastFile) -> None:
    found = asked(redfish(), past)
    assert levels(found) == dict.fromkeys(
        ("systems/1", "memory/1", "chassis/1U", "temperature/1U/CPU1", "fan/1U/Fan1"), OK
    )
    assert found["temperature/1U/CPU1"].value == 41
    bad = {"State": "Enabled", "Health": "OK", "HealthRollup": "Critical"}
    found = asked(redfish(_redfish_v1_Systems_1={"Status": bad, "MemorySummary": {
        "Status": {"HealthRollup": "Warning"}}}), past)  # fmt: skip
    assert (found["systems/1"].level, found["memory/1"].level) == (FAILING, WARNING)
    found = asked(redfish(_redfish_v1_Systems_1={"Status": {"Health": "Splendid"}}), past)
    assert found["systems/1"].level is UNKNOWN


def test_redfish_that_leads_astray(past: PastFile) -> None:
    for link in ("http://evil/", "//evil/x", 7):
        found = asked(redfish(_redfish_v1_={"Systems": {"@odata.id": link}}), past)
        assert found[""].level is UNKNOWN and "leads elsewhere" in found[""].text
    assert "does not let us in" in asked({"/redfish/v1/": (401, "")}, past)[""].text
    assert "no system and no chassis" in asked({"/redfish/v1/": (200, "{}")}, past)[""].text
    assert "no bmc.redfish" in said("redfish", HostFiles(Host("a", "processes", None)), past)[""].text
