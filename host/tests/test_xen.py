"""Guests of Xen behind the contract, with tools of the test's own in place of xl and XenStore's."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from ivc_host.hypervisor import xen
from ivc_host.hypervisor.contract import Event, Hypervisor, State
from ivc_host.migrate import inventory
from ivc_host.migrate.find import hypervisors_of

#: The host is what ssh was told; a guest is a file in its folder, with its kind in it.
_SSH = """#!/bin/sh
while [ "$1" != -- ]; do host=$1; shift; done
shift
XL_HOST=$host exec sh -c "$*"
"""
_XL = """#!{python}
import json, os, sys, time
base = {base!r}
here = base + "/" + os.environ["XL_HOST"]
words = sys.argv[1:]
with open(base + "/calls", "a") as log:
    print(os.environ["XL_HOST"], *words, file=log)
def stop(why):
    print("libxl: error: " + why, file=sys.stderr)
    sys.exit(1)
def guest(name, host=here):
    return host + "/" + name
fails = open(base + "/fails").read().split() if os.path.exists(base + "/fails") else []
for one in fails:
    call, _, host = one.partition("@")
    if call == words[0] and host in ("", os.environ["XL_HOST"]):
        if call == "restore" and "slow" in fails: time.sleep(30)
        stop(call + " failed for a reason")
if words[0] == "domid":
    if not os.path.exists(guest(words[1])):
        print(words[1] + " is an invalid domain identifier (rc=-6)", file=sys.stderr)
        sys.exit(1)
    print(7)
elif words[:2] == ["list", "-l"]:
    kind = open(guest(words[2])).read()
    print(json.dumps([dict(config=dict(
        c_info=dict(type=kind, uuid="AB-CD"), nics=[dict(bridge="br0")],
        b_info=dict(target_memkb=2048, avail_vcpus=[0, 1])))]))
elif words[0] == "list":
    print("Name ID Mem VCPUs State Time(s)")
    print("Domain-0 0 512 1 r----- 1.0")
    for name in sorted(os.listdir(here)):
        print(name, 7, 2, 2, "-b----", 1.0)
elif words[0] == "save":
    os.rename(guest(words[1]), words[2])
elif words[0] == "restore":
    os.rename(words[1], guest("g1"))
elif words[0] == "migrate":
    os.rename(guest(words[1]), guest(words[1], base + "/" + words[2]))
elif words[0] == "info":
    print("total_memory : 4096\\nfree_memory : 1024\\nnr_cpus : 4")
"""
#: XenStore takes an order, and nobody of the guest is left at once.
_STORE = """#!/bin/sh
exit 0
"""
_WATCH = """#!/bin/sh
echo @introduceDomain
sleep 0.4
mv {base}/a/g1 {base}/b/g1
echo @releaseDomain
sleep 5
"""


class World:
    def __init__(self, base: Path) -> None:
        self.base = base
        for name in ("a", "b", "bin", "store"):
            (base / name).mkdir()
        tools = {"ssh": _SSH, "xl": _XL.format(python=sys.executable, base=str(base)),
                 "xenstore-watch": _WATCH.format(base=base)}  # fmt: skip
        tools |= dict.fromkeys(("xenstore-write", "xenstore-rm", "xenstore-ls"), _STORE)
        for name, text in tools.items():
            (base / "bin" / name).write_text(text)
            (base / "bin" / name).chmod(0o755)
        lines = "".join(
            f'[hosts.{host}]\nhypervisor = "xen"\nssh = "{host}"\nstore = "{base}/store"\n'
            for host in "ab"
        )
        (base / "hosts.toml").write_text(lines)
        self.guest("pvh")

    def guest(self, kind: str) -> None:
        (self.base / "a" / "g1").write_text(kind)

    def fails(self, words: str) -> None:
        (self.base / "fails").write_text(words)

    def start(self, *words: str) -> subprocess.Popen[str]:
        env = {**os.environ, "PATH": f"{self.base}/bin:{os.environ['PATH']}",
               "IVC_INVENTORY": str(self.base / "hosts.toml")}  # fmt: skip
        return subprocess.Popen([sys.executable, "-m", "ivc_host", *words], env=env, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*words)
        out, error = process.communicate(timeout=60)
        return subprocess.CompletedProcess([], process.returncode, out, error)

    def where(self) -> list[str]:
        return [host for host in "ab" if (self.base / host / "g1").exists()]

    def calls(self) -> list[str]:
        return (self.base / "calls").read_text().splitlines()


@pytest.fixture
def world() -> Iterator[World]:
    one = World(Path(tempfile.mkdtemp(prefix="ivc-test-xen-")))
    yield one
    shutil.rmtree(one.base)


def test_moves_live(world: World) -> None:
    done = world.run("migrate", "g1", "--to", "b", "--json")
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    phases = [e["phase"] for e in told if e["event"] == "phase-done"]
    assert phases == ["check", "prepare", "suspend", "migrate"]
    assert world.where() == ["b"] and "a migrate g1 b" in world.calls()
    assert told[-1]["transferred"] is None


def test_a_paravirtual_guest_is_saved_and_restored(world: World) -> None:
    world.guest("pv")
    done = world.run("migrate", "g1", "--to", "b")
    assert done.returncode == 0, done.stderr
    assert world.where() == ["b"] and not any("migrate" in call for call in world.calls())
    assert list((world.base / "store").iterdir()) == []


@pytest.mark.parametrize(("kind", "fails"), [("pvh", "migrate"), ("pv", "save"), ("pv", "restore@b")])
def test_a_move_that_fails(world: World, kind: str, fails: str) -> None:
    world.guest(kind)
    world.fails(fails)
    done = world.run("migrate", "g1", "--to", "b")
    assert done.returncode == 1 and "failed for a reason; it runs on a as before" in done.stderr
    assert world.where() == ["a"] and list((world.base / "store").iterdir()) == []


def test_restored_nowhere(world: World) -> None:
    world.guest("pv")
    world.fails("restore")
    done = world.run("migrate", "g1", "--to", "b")
    assert done.returncode == 1 and "g1 is whole in " in done.stderr
    (left,) = (world.base / "store").iterdir()
    assert str(left) in done.stderr


def test_interrupted_between_save_and_restore(world: World) -> None:
    """It is on neither side at that moment, and must not be left so."""
    world.guest("pv")
    world.fails("restore@b slow")
    process = world.start("migrate", "g1", "--to", "b", "--json")
    for _ in range(200):
        if (world.base / "calls").exists() and any(" restore " in call for call in world.calls()):
            break
        asyncio.run(asyncio.sleep(0.05))
    process.send_signal(2)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 130 and "interrupted; it runs on a as before" in error
    assert world.where() == ["a"]


def test_save_and_load(world: World) -> None:
    file = str(world.base / "store" / "g1")
    done = world.run("save", "g1", file)
    assert done.returncode == 0, done.stderr
    assert world.where() == []
    done = world.run("load", "g1", file, "--at", "b")
    assert done.returncode == 0 and "g1 runs on b, no region" in done.stdout, done.stderr
    assert world.where() == ["b"]


def test_no_device(world: World) -> None:
    done = world.run("attach", "g1", "--region", "/dev/null")
    assert done.returncode == 1 and "guests there share memory without a device" in done.stderr
    assert "no region" in world.run("detach", "g1").stderr


def test_what_is_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{world.base}/bin:{os.environ['PATH']}")
    host = inventory.load(world.base / "hosts.toml").host("a")

    async def first(one: Hypervisor) -> Event:
        async with aclosing(one.events()) as events:
            return await anext(events)

    async def main() -> Any:
        async with hypervisors_of([host]) as (one,):
            assert isinstance(one, xen.Xen) and await one.machines() == ["g1"]
            machine = await one.machine("g1")
            assert machine is not None and machine.uuid == "ab-cd"
            assert await machine.state() is State.RUNNING
            has = await machine.describe()
            assert (has.memory, has.vcpus, has.networks) == (2 << 20, 2, ("br0",))
            about = await one.describe()
            assert (about.memory, about.memory_free, about.cpus) == (4 << 30, 1 << 30, 4)
            return await asyncio.wait_for(first(one), 10)

    assert asyncio.run(main()) == Event("g1", "gone")


@pytest.mark.parametrize(
    ("letters", "state"),
    [("r-----", State.RUNNING), ("-b----", State.RUNNING), ("------", State.RUNNING),
     ("--p---", State.PAUSED), ("---s--", State.OTHER), ("----c-", State.OTHER)],
)  # fmt: skip
def test_states(letters: str, state: State) -> None:
    assert xen._state(letters) is state
