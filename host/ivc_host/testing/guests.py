"""Parts in guests with kernels of their own: user-mode Linux and QEMU. What Xen needs besides: xen.py."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .. import paths
from ..errors import MissingError
from ..lab import lab
from . import mpi
from .part import Run, SkipPart


class Tell(lab.SilentProgress):
    """What `up` does, into the log."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def step(self, text: str) -> None:
        self._run.log(text)


def in_guest(
    run: Run, where: lab.Lab, guest: str, argv: Sequence[str], env: dict[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    try:
        done = where.run(guest, argv, env, timeout)
    except subprocess.TimeoutExpired:
        done = subprocess.CompletedProcess(list(argv), 124, "", f"(ended after {timeout:.0f} s)")
    said = (done.stdout or "") + (done.stderr or "")
    run.log(f"{guest}$ {' '.join(argv)}\n{said}\n(exit {done.returncode})")
    return subprocess.CompletedProcess(list(argv), done.returncode, said, "")


def own_program(name: str) -> str:
    return str(paths.build() / "tests" / name)


def tool(name: str) -> str:
    return str(paths.build() / "tools" / name)


def _at_once(
    run: Run, where: lab.Lab, commands: Sequence[Sequence[str]], timeout: float
) -> list[subprocess.CompletedProcess[str]]:
    """One command in each guest, all at the same time."""

    def one(guest: str, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return in_guest(run, where, guest, words, {}, timeout)

    with ThreadPoolExecutor(len(commands)) as pool:
        return list(pool.map(one, where.guests, commands))


def info(run: Run, where: lab.Lab, mechanism: str) -> None:
    for guest in where.guests:
        done = in_guest(run, where, guest, [tool("ivc_info")], {}, 60)
        good = done.returncode == 0 and mechanism in done.stdout
        run.check(f"{guest}: ivc_info finds the {mechanism} region", good, done.stdout)


def _exchange(run: Run, where: lab.Lab, messages: int) -> list[subprocess.CompletedProcess[str]]:
    """One member in each guest, on the region that is found by itself."""
    count = len(where.guests)
    words = [own_program("test-exchange"), "member"]
    members = [[*words, str(index), str(count), str(messages)] for index in range(count)]
    return _at_once(run, where, members, 180)


def exchange(run: Run, where: lab.Lab, messages: int) -> None:
    for guest, done in zip(where.guests, _exchange(run, where, messages), strict=True):
        run.count(f"{guest}: exchange", done)


def sc07(run: Run, where: lab.Lab) -> None:
    """The programs of the SC'07 paper's figure 5, a guest each."""
    programs = [str(paths.build() / "examples" / f"sc07-{name}") for name in ("server", "client")]
    said = [
        "server: client 1\nserver: 6 bytes back\n",
        "client: connected to 0\nclient: wrote 6 bytes\nclient: read 6 bytes: hello\n",
    ]
    done = _at_once(run, where, [[program, "7"] for program in programs], 60)
    for guest, want, one in zip(where.guests, said, done, strict=True):
        good = one.returncode == 0 and one.stdout == want
        run.check(f"{guest}: the SC'07 paper's {want.partition(':')[0]}", good, one.stdout)


#: A kernel's name of itself, as copies of one snapshot have it in common.
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_SAME_BOOT_ID = f"echo 6b8ff8f4-64c6-4bf1-9a71-d5a1e0b0c0de >/run/boot_id && mount --bind /run/boot_id {_BOOT_ID}"


def same_boot_id(run: Run, where: lab.Lab) -> None:
    """Two that say that they are one kernel: nobody takes processes of the other for dead, while members come and go."""
    line = f"{_SAME_BOOT_ID} && cat {_BOOT_ID} && readlink /proc/self/ns/pid"
    told = [done.stdout for done in _at_once(run, where, [["sh", "-c", line]] * len(where.guests), 30)]
    if not run.check("guests that say they are one kernel", len(set(told)) == 1, "\n".join(told)):
        return
    argv = [mpi.program("integrity"), "--seconds", "4", "--max-size", "100000"]
    others: list[subprocess.CompletedProcess[str]] = []
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(mpirun, run, where, "btl ivc,tcp,self", argv, None, 60)
        while not job.done():
            others += _exchange(run, where, 3)
        done = job.result()
    what = "integrity over guests that say they are one kernel"
    lost = [other.stdout for other in others if other.returncode != 0]
    run.check(f"{what}: members that come and go", bool(others) and not lost, "\n".join(lost))
    if run.check(what, done.returncode == 0, done.stdout):
        by_network = [int(m[2]) for m in mpi.SENT.finditer(done.stdout)]
        good = mpi.all_pairs(done.stdout, len(where.guests)) and not any(by_network)
        run.check(f"{what}: through memory alone", good, done.stdout)


def conformance(run: Run, where: lab.Lab) -> None:
    """Before anybody else uses the region: it is cleared."""
    done = in_guest(run, where, where.guests[0], [own_program("test-conformance"), "found"], {}, 600)
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


def mpirun(
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


def integrity(run: Run, where: lab.Lab, labels: Sequence[str], size: int, timeout: float) -> None:
    count = len(where.guests)
    argv = [mpi.program("integrity"), "--iterations", "1", "--max-size", str(size)]
    for label in labels:
        done = mpirun(run, where, label, argv, None, timeout)
        what = f"integrity over {count} guests, {label}"
        if run.check(what, done.returncode == 0, done.stdout):
            run.check(f"{what}: through memory", mpi.all_pairs(done.stdout, count), done.stdout)
    done = mpirun(run, where, "btl ivc,tcp,self", argv, "none", timeout)
    good = done.returncode == 0 and not mpi.pairs_by_memory(done.stdout)
    run.check(f"integrity over {count} guests without a region: the network", good, done.stdout)


def up(run: Run, hypervisor: str, guests: int, share: Sequence[Path] = ()) -> lab.Lab:
    if os.geteuid() != 0:
        raise SkipPart("a lab needs root: run with sudo")
    try:
        name = f"test-{hypervisor}-{os.getpid() % 10000}"
        return lab.up(name, guests, hypervisor, share=[paths.project(), *share], progress=Tell(run))
    except MissingError as error:
        raise SkipPart(str(error)) from error


def uml(run: Run) -> None:
    mpi.require()
    with up(run, "uml", 2) as two:
        info(run, two, "mmapper")
        conformance(run, two)
        exchange(run, two, 150)
        sc07(run, two)
        integrity(run, two, list(mpi.SELECTIONS), 1_000_000, 180)
        same_boot_id(run, two)
    with up(run, "uml", 3) as three:
        exchange(run, three, 60)
        integrity(run, three, ["btl ivc,tcp,self"], 300_000, 240)


def qemu(run: Run) -> None:
    mpi.require()
    with up(run, "qemu", 2) as two:
        info(run, two, "ivshmem")
        conformance(run, two)
        exchange(run, two, 60)
        integrity(run, two, ["btl ivc,tcp,self", "no option"], 300_000, 300)
