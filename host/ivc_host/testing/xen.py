"""The part `xen`: three paravirtual guests of one host, over grants.

What every kind of guest is tested with, LAMMPS, MPICH, and what only Xen can refuse: devices, modules,
entries in XenStore, a peer whose domain is gone. Afterwards Xen and XenStore have nothing of ours.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

from ..bench import lammps
from ..errors import IvcError
from ..lab import lab
from ..matrix import mpis, programs
from . import guests, mpi
from .part import Run

#: Connects and closes between two guests, after which nothing may be left.
_CONNECTS = int(os.environ.get("IVC_TEST_CONNECTS") or 40)
#: Xen's console is slow.
_SETTLE_SECONDS = 5
#: Until two guests have found each other and exchanged a packet.
_HOLD_SECONDS = 10
_PLUGIN = "btl ivc,tcp,self"


def _in_host(where: lab.Lab, line: str) -> str:
    return where.run("h1", ["sh", "-c", line], timeout=120).stdout


def _shell(run: Run, where: lab.Lab, guest: str, line: str) -> subprocess.CompletedProcess[str]:
    return guests.in_guest(run, where, guest, ["sh", "-c", line], {}, 180)


def _counts(run: Run, where: lab.Lab) -> dict[str, int]:
    """What Xen and XenStore have of the guests: grants that are mapped, event channels, entries."""
    line = "xl dmesg -c >/dev/null; xl debug-keys ge; sleep %d; xl dmesg" % _SETTLE_SECONDS
    said = _in_host(where, line)
    store = ""
    for guest in where.guests:
        store += _in_host(
            where, f"xenstore-ls -f /local/domain/$(xl domid {guest})/data 2>/dev/null; true"
        )
    entries = re.findall(r"/data/ivc(?:-pairs|-knock)?/", store)
    run.log(f"{store}\n{said}")
    return {
        # To other guests than dom0, which has those of their disks and interfaces.
        "grants": len(re.findall(r"^\(XEN\) \[ *0x[0-9a-f]+\] +[1-9]\d* 0x", said, re.M)),
        "event channels": len(re.findall(r"^\(XEN\) +\d+ \[.*\]: s=", said, re.M)),
        "entries": len(entries),
    }


def _connects(run: Run, where: lab.Lab, count: int) -> None:
    server, client = where.guests[:2]

    def one(guest: str, word: str) -> subprocess.CompletedProcess[str]:
        words = [guests.own_program("test-grants"), word, str(count)]
        return guests.in_guest(run, where, guest, words, {}, 60 + 2 * count)

    before = _counts(run, where)
    with ThreadPoolExecutor(2) as pool:
        serving = pool.submit(one, server, "serve")
        connecting = pool.submit(one, client, "connect")
        run.count(f"{client}: connects", connecting.result())
        run.count(f"{server}: is connected to", serving.result())
    after = _counts(run, where)
    run.log(f"before {before}, after {after}")
    seen = before["event channels"] > 0
    run.check("the event channels of the guests' own devices are seen", seen, str(before))
    for what, number in after.items():
        run.check(f"{count} connects leave no {what}", number <= before[what], f"{before} {after}")


def _lammps(run: Run, where: lab.Lab) -> None:
    """The printed state is the same, digit by digit, through memory and through the network."""
    count = len(where.guests)
    words = lammps.command(lammps.DEFAULT_INPUT)
    by_memory = guests.mpirun(run, where, "btl ivc,self", words, None, 300)
    by_network = guests.mpirun(run, where, _PLUGIN, words, "none", 300)
    what = f"LAMMPS over {count} guests"
    try:
        one, other = lammps.parse(by_memory.stdout), lammps.parse(by_network.stdout)
    except IvcError as error:
        run.failed(what, f"{error} {error.detail or ''}")
        return
    same = lammps.difference(one, other) == 0
    run.check(f"{what}: {len(one.thermo)} lines of state as by network", same,
              f"{one.thermo}\n{other.thermo}")  # fmt: skip
    run.check(f"{what}: through memory", mpi.all_pairs(by_memory.stdout, count), by_memory.stdout)
    run.log(f"LAMMPS: {one.loop_s} s through memory, {other.loop_s} s by network")


def _mpich(run: Run, where: lab.Lab, one: mpis.Mpi) -> None:
    for count in (2, 3):
        names = where.guests[:count]
        words, env = one.command(mpis.IVC, one.environment(), names, count, False)
        program = programs.program(one, one.environment(), "integrity")
        words = [*words, str(program), "--iterations", "1", "--max-size", "300000"]
        done = guests.in_guest(run, where, names[0], words, {**env, "IVC_STATS": "1"}, 300)
        what = f"integrity over {count} guests, {one.label}"
        sent = [(int(memory), int(network)) for memory, network in mpi.SENT.findall(done.stdout)]
        if run.check(what, done.returncode == 0, done.stdout):
            good = len(sent) == count * (count - 1) and all(one and not other for one, other in sent)
            run.check(f"{what}: through memory", good, done.stdout)


# What is refused: a clear word, and the network.


def _says(run: Run, what: str, done: subprocess.CompletedProcess[str], word: str) -> None:
    run.check(f"{what}: \"{word}\"", done.returncode != 0 and word in done.stdout, done.stdout)


def _by_network(run: Run, where: lab.Lab, guest: str, what: str) -> None:
    """A job goes on, in which that guest's rank has no memory in common with others, who do have."""
    rank = where.guests.index(guest)
    argv = [mpi.program("integrity"), "--iterations", "1", "--max-size", "100000"]
    done = guests.mpirun(run, where, _PLUGIN, argv, None, 240)
    pairs = [pair for pair, sent in mpi.pairs_by_memory(done.stdout).items() if sent]
    good = done.returncode == 0 and pairs and not any(rank in pair for pair in pairs)
    run.check(f"{what}: a job goes on, {guest} by network", bool(good), done.stdout)


def _refusals(run: Run, where: lab.Lab) -> None:
    guest = where.guests[0]
    info = f"IVC_REGION=xen {{}} {guests.tool('ivc_info')}"
    tool = info.format("setpriv --reuid 65534 --clear-groups")
    _says(run, "a user without permission", _shell(run, where, guest, tool),
          "no permission for /dev/xen/gntalloc")  # fmt: skip
    # As many entries as a guest may have, in hundreds, then one by one.
    fill = (
        'n=0; for step in 100 1; do while [ $n -lt 5000 ] && '
        'xenstore-write $(seq -f "data/fill/$n-%.0f x" $step) 2>/dev/null; do n=$((n + 1)); done; done; echo $n'
    )
    _shell(run, where, guest, fill)
    connect = [guests.own_program("test-grants"), "connect", "1"]
    _says(run, "XenStore is full", guests.in_guest(run, where, guest, connect, {}, 120),
          "XenStore does not take")  # fmt: skip
    _by_network(run, where, guest, "XenStore is full")
    _shell(run, where, guest, "xenstore-rm data/fill")
    guests.integrity(run, where, ["btl ivc,self"], 100_000, 180)
    # It does not come back: guests have what their first archive has loaded.
    last = where.guests[-1]
    _shell(run, where, last, "rmmod xen_gntalloc")
    _says(run, "no module", _shell(run, where, last, info.format("")), "load the modules xen_gntalloc")
    _by_network(run, where, last, "no module")


def _vanishes(run: Run, where: lab.Lab) -> None:
    """A domain is destroyed whose process another is connected to. The last of it: it does not come again."""
    witness, victim = where.guests[:2]
    program = guests.own_program("test-grants")
    before = _counts(run, where)
    with ThreadPoolExecutor(2) as pool:
        seen = pool.submit(guests.in_guest, run, where, witness, [program, "witness", "1"], {}, 240)
        pool.submit(_hold, where, victim, [program, "hold", "1"])
        time.sleep(_HOLD_SECONDS)
        _in_host(where, f"xl destroy {victim}")
        done = seen.result()
    run.check(f"{victim} is destroyed: {witness} hears that it is gone",
              done.returncode == 0 and "ok 1" in done.stdout, done.stdout)  # fmt: skip
    after = _counts(run, where)
    for what, number in after.items():
        run.check(f"of {victim}, destroyed, no {what} are left", number <= before[what], f"{before} {after}")


def _hold(where: lab.Lab, guest: str, words: list[str]) -> None:
    """Ends with the guest, or soon after, one way or another."""
    with contextlib.suppress(subprocess.TimeoutExpired, IvcError):
        where.run(guest, words, timeout=3 * _HOLD_SECONDS)


def xen(run: Run) -> None:
    """Paravirtual guests: every mechanism of Xen's that is used is the same in others."""
    mpi.require()
    one = mpis.named(["mpich"])[0]
    programs.program(one, one.environment(), "integrity")  # before the guests get their copies
    share = [lammps.DEFAULT_INPUT.parent, one.environment().folder]
    with guests.up(run, "xen", 3, share) as three:
        guests.info(run, three, "xen")
        guests.conformance(run, three)
        guests.exchange(run, three, 30)
        guests.integrity(run, three, ["btl ivc,self", "no option"], 300_000, 180)
        _mpich(run, three, one)
        _lammps(run, three)
        _connects(run, three, _CONNECTS)
        _refusals(run, three)
        _vanishes(run, three)
