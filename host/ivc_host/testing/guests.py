"""Parts in guests with kernels of their own: user-mode Linux, QEMU and Xen."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .. import paths
from ..errors import MissingError
from ..lab import lab
from . import mpi
from .part import Run, SkipPart


class _Tell(lab.SilentProgress):
    """What `up` does, into the log."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def step(self, text: str) -> None:
        self._run.log(text)


def _in_guest(
    run: Run, where: lab.Lab, guest: str, argv: Sequence[str], env: dict[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    try:
        done = where.run(guest, argv, env, timeout)
    except subprocess.TimeoutExpired:
        done = subprocess.CompletedProcess(list(argv), 124, "", f"(ended after {timeout:.0f} s)")
    said = (done.stdout or "") + (done.stderr or "")
    run.log(f"{guest}$ {' '.join(argv)}\n{said}\n(exit {done.returncode})")
    return subprocess.CompletedProcess(list(argv), done.returncode, said, "")


def _own_program(name: str) -> str:
    return str(paths.build() / "tests" / name)


def _info(run: Run, where: lab.Lab, mechanism: str) -> None:
    for guest in where.guests:
        done = _in_guest(run, where, guest, [str(paths.build() / "tools" / "ivc_info")], {}, 60)
        good = done.returncode == 0 and mechanism in done.stdout
        run.check(f"{guest}: ivc_info finds the {mechanism} region", good, done.stdout)


def _exchange(run: Run, where: lab.Lab, messages: int) -> None:
    """One member in each guest, on the region that is found by itself."""
    count = len(where.guests)

    def member(index: int) -> subprocess.CompletedProcess[str]:
        words = [_own_program("test-exchange"), "member", str(index), str(count), str(messages)]
        return _in_guest(run, where, where.guests[index], words, {}, 180)

    with ThreadPoolExecutor(count) as pool:
        for guest, done in zip(where.guests, pool.map(member, range(count)), strict=True):
            run.count(f"{guest}: exchange", done)


def _conformance(run: Run, where: lab.Lab) -> None:
    """Before anybody else uses the region: it is cleared."""
    done = _in_guest(run, where, where.guests[0], [_own_program("test-conformance"), "found"], {}, 600)
    run.count(f"{where.guests[0]}: conformance", done)


def _mpi_env(region: str | None) -> dict[str, str]:
    env = {
        "OMPI_MCA_mca_base_component_path": mpi.components(),
        "IVC_STATS": "1",
        **mpi.ONE_SIDED,
    }
    if region is not None:
        env["IVC_REGION"] = region
    return env


def _mpirun(
    run: Run, where: lab.Lab, label: str, argv: list[str], region: str | None, timeout: float
) -> subprocess.CompletedProcess[str]:
    env = {**_mpi_env(region), **mpi.SELECTIONS[label]}
    try:
        done = where.mpirun(argv, env=env, timeout=timeout)
    except subprocess.TimeoutExpired:
        done = subprocess.CompletedProcess(argv, 124, "", f"(ended after {timeout:.0f} s)")
    said = (done.stdout or "") + (done.stderr or "")
    run.log(f"{where.name}$ mpirun {' '.join(argv)}\n{said}\n(exit {done.returncode})")
    return subprocess.CompletedProcess(argv, done.returncode, said, "")


def _integrity(run: Run, where: lab.Lab, labels: Sequence[str], size: int, timeout: float) -> None:
    count = len(where.guests)
    argv = [mpi.program("integrity"), "--iterations", "1", "--max-size", str(size)]
    for label in labels:
        done = _mpirun(run, where, label, argv, None, timeout)
        what = f"integrity over {count} guests, {label}"
        if run.check(what, done.returncode == 0, done.stdout):
            run.check(f"{what}: through memory", mpi.all_pairs(done.stdout, count), done.stdout)
    done = _mpirun(run, where, "btl ivc,tcp,self", argv, "none", timeout)
    good = done.returncode == 0 and not mpi.pairs_by_memory(done.stdout)
    run.check(f"integrity over {count} guests without a region: the network", good, done.stdout)


def _up(run: Run, hypervisor: str, guests: int) -> lab.Lab:
    if os.geteuid() != 0:
        raise SkipPart("a lab needs root: run with sudo")
    try:
        name = f"test-{hypervisor}-{os.getpid() % 10000}"
        return lab.up(name, guests, hypervisor, share=[paths.project()], progress=_Tell(run))
    except MissingError as error:
        raise SkipPart(str(error)) from error


def uml(run: Run) -> None:
    mpi.require()
    with _up(run, "uml", 2) as two:
        _info(run, two, "mmapper")
        _conformance(run, two)
        _exchange(run, two, 150)
        _integrity(run, two, list(mpi.SELECTIONS), 1_000_000, 180)
    with _up(run, "uml", 3) as three:
        _exchange(run, three, 60)
        _integrity(run, three, ["btl ivc,tcp,self"], 300_000, 240)


def qemu(run: Run) -> None:
    mpi.require()
    with _up(run, "qemu", 2) as two:
        _info(run, two, "ivshmem")
        _conformance(run, two)
        _exchange(run, two, 60)
        _integrity(run, two, ["btl ivc,tcp,self", "no option"], 300_000, 300)


#: Connects and closes between two guests of Xen, after which nothing may be left.
_CONNECTS = int(os.environ.get("IVC_TEST_CONNECTS") or 40)
#: Xen's console is slow.
_SETTLE_SECONDS = 5


def _xen_counts(run: Run, where: lab.Lab) -> dict[str, int]:
    """What Xen and XenStore have of the guests: grants that are mapped, event channels, entries."""
    line = "xl dmesg -c >/dev/null; xl debug-keys ge; sleep %d; xl dmesg" % _SETTLE_SECONDS
    said = where.run("h1", ["sh", "-c", line], timeout=120).stdout
    store = ""
    for guest in where.guests:
        ask = f"xenstore-ls -f /local/domain/$(xl domid {guest})/data 2>/dev/null; true"
        store += where.run("h1", ["sh", "-c", ask], timeout=120).stdout
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
        words = [_own_program("test-grants"), word, str(count)]
        return _in_guest(run, where, guest, words, {}, 60 + 2 * count)

    before = _xen_counts(run, where)
    with ThreadPoolExecutor(2) as pool:
        serving = pool.submit(one, server, "serve")
        connecting = pool.submit(one, client, "connect")
        run.count(f"{client}: connects", connecting.result())
        run.count(f"{server}: is connected to", serving.result())
    after = _xen_counts(run, where)
    run.log(f"before {before}, after {after}")
    seen = before["event channels"] > 0
    run.check("the event channels of the guests' own devices are seen", seen, str(before))
    for what, number in after.items():
        run.check(f"{count} connects leave no {what}", number <= before[what], f"{before} {after}")


def xen(run: Run) -> None:
    """Paravirtual guests: every mechanism of Xen's that is used is the same in others."""
    mpi.require()
    with _up(run, "xen", 3) as three:
        _info(run, three, "xen")
        _conformance(run, three)
        _exchange(run, three, 30)
        _integrity(run, three, ["btl ivc,self", "no option"], 300_000, 180)
        _connects(run, three, _CONNECTS)
