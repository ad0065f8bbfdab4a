"""Labs of QEMU guests, with real guests, a real ivshmem device and an image made from packages."""

from __future__ import annotations

import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ivc_host.errors import LabError
from ivc_host.lab import image, initramfs, kvm, state
from ivc_host.lab import lab as labs
from ivc_host.lab.hypervisor import SilentProgress
from ivc_host.lab.qemu import REGION_DEVICE, SLOT_REGION, Qemu
from ivc_host.lab.qemu_words import QEMU

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="a lab needs root"),
    pytest.mark.skipif(shutil.which(QEMU) is None, reason=f"{QEMU} is not installed"),
]

NAME = f"tq{os.getpid()}"
DEVICE = Path(f"/sys/bus/pci/devices/0000:00:{SLOT_REGION:02x}.0")
RESOURCE = DEVICE / "resource2"
REGION_SIZE = 32 << 20


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of the host that the guests see; in it the program that looks at the region."""
    directory = tmp_path_factory.mktemp("shared")
    source = Path(__file__).with_name("region_probe.c")
    subprocess.run(
        ["cc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-o", directory / "region_probe", source],
        check=True,
    )
    return directory


@pytest.fixture(scope="module")
def lab(shared: Path) -> Iterator[labs.Lab]:
    with labs.up(NAME, 2, "qemu", region_size=REGION_SIZE, share=[shared]) as one:
        yield one


def shell(lab: labs.Lab, guest: str, line: str) -> str:
    done = lab.run(guest, ["sh", "-c", line], timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def traces(name: str) -> list[str]:
    """What is left of a lab: files, mounts, processes."""
    directory = str(state.directory(name))
    found = [str(p) for p in (Path(directory), state.region_path(name)) if p.exists()]
    found += [line for line in Path("/proc/mounts").read_text().splitlines() if directory in line]
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if directory.encode() in (entry / "cmdline").read_bytes():
                found.append(str(entry))
        except OSError:
            continue
    return found


def test_guests_are_machines_of_their_own(lab: labs.Lab) -> None:
    for guest in lab.guests:
        assert shell(lab, guest, "hostname") == guest
        version = shell(lab, guest, "uname -r")
        assert version == Qemu().guest_image.kernel_version
        assert version in lab.guest_description()
        boot = shell(lab, guest, "cat /proc/sys/kernel/random/boot_id")
        assert boot != Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    shell(lab, "g1", "echo private >/dev/shm/mark")
    assert lab.run("g2", ["test", "-e", "/dev/shm/mark"]).returncode == 1
    assert not Path("/dev/shm/mark").exists()


def test_ranks_in_both_guests(lab: labs.Lab) -> None:
    done = lab.mpirun(["hostname"], np=4, timeout=60)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == ["g1", "g1", "g2", "g2"]


def test_the_device_is_where_it_belongs(lab: labs.Lab) -> None:
    for guest in lab.guests:
        assert shell(lab, guest, f"cat {DEVICE}/vendor {DEVICE}/device") == "0x1af4\n0x1110"
        assert int(shell(lab, guest, f"stat -c %s {RESOURCE}")) == REGION_SIZE


def test_guests_and_host_see_the_same_bytes(lab: labs.Lab, shared: Path) -> None:
    probe = str(shared / "region_probe")
    assert lab.run("g1", [probe, str(RESOURCE), "put", "from g1"]).returncode == 0
    assert lab.run("g2", [probe, str(RESOURCE), "get"]).stdout == "from g1\n"
    # The other mapping that sysfs offers for a prefetchable BAR shows the same.
    assert lab.run("g2", [probe, f"{RESOURCE}_wc", "get"]).stdout == "from g1\n"
    region = state.region_path(NAME)
    assert region.read_bytes()[4096:4104] == b"from g1\0"
    with open(region, "r+b") as file:
        file.seek(4096)
        file.write(b"of host\0")
    assert lab.run("g1", [probe, str(RESOURCE), "get"]).stdout == "of host\n"


def both(lab: labs.Lab, first: list[str], second: list[str]) -> list[str]:
    """Run one command in each guest at the same time; returns what they print."""
    with open(state.region_path(NAME), "r+b") as file:
        file.write(bytes(4096))
    printed = ["", ""]

    def run(number: int, argv: list[str]) -> None:
        done = lab.run(lab.guests[number], argv, timeout=120)
        printed[number] = done.stdout.strip() if done.returncode == 0 else done.stderr

    other = threading.Thread(target=run, args=(1, second))
    other.start()
    run(0, first)
    other.join()
    return printed


def test_atomic_additions_of_two_guests_are_not_lost(lab: labs.Lab, shared: Path) -> None:
    words = [str(shared / "region_probe"), str(RESOURCE), "add", "500000"]
    assert both(lab, words, words) == ["1000000", "1000000"]


def test_a_fence_orders_stores_and_loads_between_guests(lab: labs.Lab, shared: Path) -> None:
    words = [str(shared / "region_probe"), str(RESOURCE), "fence"]
    assert both(lab, [*words, "0", "500000"], [*words, "1", "500000"]) == ["0", ""]


def test_shared_directories_are_live_and_read_only(lab: labs.Lab, shared: Path) -> None:
    (shared / "later").write_text("written after the boot")
    assert shell(lab, "g2", f"cat {shared}/later") == "written after the boot"
    (shared / "later").write_text("changed")
    assert shell(lab, "g2", f"cat {shared}/later") == "changed"
    assert lab.run("g2", ["touch", f"{shared}/mine"]).returncode != 0
    assert not (shared / "mine").exists()


def test_qemu_takes_orders(lab: labs.Lab) -> None:
    with socket.socket(socket.AF_UNIX) as qmp:
        qmp.connect(str(state.directory(NAME) / "g1/h1.qmp"))
        stream = qmp.makefile("rw")
        assert "QMP" in json.loads(stream.readline())
        answers = []
        for order in ("qmp_capabilities", "query-status", "query-pci"):
            stream.write(json.dumps({"execute": order}) + "\n")
            stream.flush()
            answers.append(json.loads(stream.readline())["return"])
        assert answers[1]["status"] == "running"
        slots = {one["qdev_id"]: one["slot"] for one in answers[2][0]["devices"]}
        assert slots[REGION_DEVICE] == SLOT_REGION


def test_time_runs_as_on_the_host(lab: labs.Lab) -> None:
    """The guest's clock is the host's time stamp counter; a wrong rate would falsify figures."""

    def read() -> tuple[float, float, float]:
        before = time.monotonic()
        guest = float(shell(lab, "g1", "cat /proc/uptime").split()[0])
        return before, guest, time.monotonic()

    before_1, guest_1, after_1 = read()
    time.sleep(5)
    before_2, guest_2, after_2 = read()
    # Whenever the guest looked, it was between these; its clock shows hundredths.
    assert before_2 - after_1 - 0.05 <= guest_2 - guest_1 <= after_2 - before_1 + 0.05


def test_down_leaves_nothing() -> None:
    name = f"{NAME}d"
    one = labs.up(name, 1, "qemu")
    assert traces(name)
    one.down()
    assert traces(name) == []


def test_a_guest_that_does_not_boot_shows_its_console(monkeypatch: pytest.MonkeyPatch) -> None:
    ordinary = Qemu.kernel_line
    # No first program in the archive, and no root file system that the kernel could mount itself.
    monkeypatch.setattr(Qemu, "kernel_line", lambda self: f"{ordinary(self)} rdinit=/absent")
    name = f"{NAME}f"
    with pytest.raises(LabError, match="g1.*ended while it booted") as caught:
        labs.up(name, 1, "qemu")
    assert "Unable to mount root fs" in (caught.value.detail or "")
    assert traces(name) == []


def test_a_qemu_that_does_not_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Qemu, "_processor", lambda self: ["-cpu", "nonsense"])
    name = f"{NAME}s"
    with pytest.raises(LabError, match="g1.*ended") as caught:
        labs.up(name, 1, "qemu")
    assert "nonsense" in (caught.value.detail or "")
    assert traces(name) == []


def test_the_image_needs_no_network_the_second_time() -> None:
    Qemu().prepare(SilentProgress())
    line = (
        "from ivc_host.lab.qemu import Qemu; from ivc_host.lab.hypervisor import SilentProgress;"
        "Qemu().prepare(SilentProgress())"
    )
    subprocess.run(["unshare", "--net", sys.executable, "-c", line], check=True, timeout=20)


def test_an_image_that_cannot_be_made_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IVC_CACHE", str(tmp_path))
    # The discard port: nothing answers there.
    monkeypatch.setattr(image, "apt_sources", lambda code: [f"deb http://127.0.0.1:9/ {code} main"])
    with pytest.raises(LabError, match="mmdebstrap could not install") as caught:
        image.make(SilentProgress())
    assert "127.0.0.1" in (caught.value.detail or "")
    assert image.find() is None
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []
    assert str(tmp_path) not in Path("/proc/mounts").read_text()


def test_apt_sources_are_the_hosts_own() -> None:
    code = platform.freedesktop_os_release()["VERSION_CODENAME"]
    lines = image.apt_sources(code)
    assert lines and all(line.startswith("deb ") for line in lines)
    assert not any("backports" in line for line in lines)
    with pytest.raises(LabError, match="no package source for nonesuch"):
        image.apt_sources("nonesuch")


def test_the_kvm_probe_is_remembered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = image.make(SilentProgress())
    monkeypatch.setenv("IVC_CACHE", str(tmp_path))
    monkeypatch.setattr(kvm, "DEVICE", tmp_path)  # any file that can be opened
    calls: list[image.Image] = []

    def probe(one: image.Image) -> bool:
        calls.append(one)
        return True

    monkeypatch.setattr(kvm, "_probe", probe)
    assert [kvm.usable(made, SilentProgress()) for _ in range(3)] == [True] * 3
    assert len(calls) == 1
    monkeypatch.setattr(kvm, "_boot_id", lambda: "the next boot")
    assert kvm.usable(made, SilentProgress())
    assert len(calls) == 2
    monkeypatch.setattr(kvm, "DEVICE", tmp_path / "absent")
    assert not kvm.usable(made, SilentProgress())


def test_a_probe_guest_reaches_user_space_under_tcg() -> None:
    """The very guest that decides about KVM, on the processor that always works."""
    made = image.make(SilentProgress())
    command = [word if word != "kvm" else "tcg" for word in kvm.command(made)]
    command[command.index("-cpu") + 1] = "max"
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    assert initramfs.PROBE_MARK in done.stdout.decode(errors="replace")
