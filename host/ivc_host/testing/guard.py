"""The parts `guard` and `guard-libvirt`: a host fails under an MPI job, and nobody lifts a hand.

Four guests on two hosts of a lab, a third host spare. A job that checks every byte runs in all of them, and
`ivc guard run` watches the hosts: a failure that is withdrawn while the guests move, one from which they
move, and one for which there is no spare any more.

The hosts of a lab are this machine. So what the guard reads of each is a folder of its own: an EDAC
driver's counters, an administrator's file, and the counters of load of a machine that does nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from .. import window as windows
from ..errors import IvcError, MissingError
from ..guard import journal
from ..hypervisor import libvirt
from ..hypervisor.qmp import Monitor
from ..lab import lab as labs
from ..lab import libvirt as lab_libvirt
from ..lab import qemu, ssh
from ..lab.hosts import host_name
from ..lab.job import Job
from ..matrix import mpis, programs
from . import migrate_qemu, mpi
from .guests import Tell
from .part import Run, SkipPart

_PLACE = (1, 1, 2, 2)
_HOSTS = tuple(map(host_name, (1, 2, 3)))
_MPI = "openmpi-4.1-plugin"
_MEMORY_MB = 384
_REGION = 32 << 20
_SIZE = 256 << 10
#: Seconds for the job to begin, for the guard to do something, and for the job to end.
_START, _DONE, _END = 180.0, 150.0, 120.0
_TICK = 0.2
#: Looks of the guard after an alarm in which nothing may begin.
_LOOKS = 3
#: Bytes a second at which a guest does not get away.
_SLOW, _FAST = 1 << 20, 1 << 30
_PHASES = {
    "qemu": ["check", "prepare", "suspend", "detach", "migrate", "switch", "attach"],
    "libvirt": ["check", "prepare", "suspend", "detach", "migrate", "attach"],
}

#: Two of three hosts may be sick here, or the second failure would be one of too many. A window of some
#: seconds instead of half an hour; else the paper's rule of a spare host.
_SETTINGS = """state = "{folder}/past.db"
[guard]
policy = "spare-only"
interval = 1.0
breaker = 0.7
reserve = 0
journal = "{folder}/journal"
socket = "{folder}/socket"
listen = "127.0.0.1:{port}"
[load]
window = 4.0
[sources.edac]
[sources.file]
"""


class Trees:
    """What the guard reads of each host."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._begun = time.monotonic()
        boot = Path("/proc/sys/kernel/random/boot_id")
        for host in _HOSTS:
            self._write(host, str(boot.relative_to("/")), boot.read_text())
            self._write(host, "proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 8000000 kB\n")
            self.errors(host, 0)
        self.tick()

    def root(self, host: str) -> Path:
        return self._folder / host

    def _write(self, host: str, file: str, text: str) -> None:
        """In one step, for who reads meanwhile."""
        path = self.root(host) / file
        path.parent.mkdir(parents=True, exist_ok=True)
        new = self._folder / f"new-{threading.get_ident()}"
        new.write_text(text)
        new.replace(path)

    def errors(self, host: str, n: int) -> None:
        """So many uncorrected errors of memory, as the kernel's EDAC driver counts them."""
        self._write(host, "sys/devices/system/edac/mc/mc0/ue_count", f"{n}\n")

    def mark(self, host: str, reason: str | None) -> None:
        """An administrator says that it fails; None: he has changed his mind."""
        if reason is None:
            (self.root(host) / "etc/ivc/failing").unlink()
        else:
            self._write(host, "etc/ivc/failing", f"{reason}\n")

    def tick(self) -> None:
        """Time goes by, and the hosts do nothing."""
        seconds = 1000 + time.monotonic() - self._begun
        for host in _HOSTS:
            self._write(host, "proc/uptime", f"{seconds:.2f} {seconds:.2f}\n")
            self._write(host, "proc/stat", f"cpu  0 0 0 {seconds * 100:.0f} 0 0 0 0 0 0\n")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Watch:
    """`ivc guard run` over a lab."""

    def __init__(self, run: Run, lab: labs.Lab, folder: Path) -> None:
        self.trees = Trees(folder)
        self._run = run
        self._lab = lab
        self._folder = folder
        self._port = _free_port()
        self._config = folder / "guard.toml"
        hosts = "".join(f'[hosts.{host}]\nroot = "{self.trees.root(host)}"\n' for host in _HOSTS)
        self._config.write_text(_SETTINGS.format(folder=folder, port=self._port) + hosts)
        self._ended = threading.Event()
        self._clock = threading.Thread(target=self._let_time_go_by)
        self._clock.start()
        self._log = (folder / "guard.log").open("w")
        words = ["guard", "run", "--lab", lab.name, "--config", str(self._config)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ivc_host", *words],
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *about: object) -> None:
        self._process.kill()
        self._process.wait()
        self._ended.set()
        self._clock.join()
        self._run.log(self.said())
        self._log.close()

    def _let_time_go_by(self) -> None:
        while not self._ended.wait(_TICK):
            self.trees.tick()

    def said(self) -> str:
        return (self._folder / "guard.log").read_text()

    def lines(self, kind: str) -> list[dict[str, Any]]:
        """The journal's lines of a kind."""
        return [line for line in journal.read(self._folder / "journal") if line["kind"] == kind]

    def of(self, kind: str, key: str, since: int = 0) -> dict[str, list[Any]]:
        """What lines of a kind say, by machine, from the SINCE-th of them on."""
        found: dict[str, list[Any]] = {}
        for line in self.lines(kind)[since:]:
            found.setdefault(line["machine"], []).append(line[key])
        return found

    def status(self) -> dict[str, Any]:
        """What `ivc guard status` says; empty when nobody answers yet."""
        words = ["guard", "status", "--json", "--lab", self._lab.name, "--config", str(self._config)]
        done = subprocess.run([sys.executable, "-m", "ivc_host", *words],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True)  # fmt: skip
        return dict(json.loads(done.stdout)) if done.stdout.startswith("{") else {}

    def metric(self, name: str) -> str:
        """The line of one of its metrics."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=10) as answer:
                lines = answer.read().decode().splitlines()
        except OSError as fault:
            return f"no {name}: {fault}"
        return next((line for line in lines if line.startswith(name)), f"no {name}")

    def until(self, true: Callable[[], object], seconds: float = _DONE) -> bool:
        """Wait until something is so, at most SECONDS."""
        end = time.monotonic() + seconds
        while not true():
            if time.monotonic() > end or self._process.poll() is not None:
                return False
            time.sleep(0.1)
        return True

    def end(self) -> int | None:
        """Asked to end, it does; its exit status."""
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(30)
        except subprocess.TimeoutExpired:
            return None


class Play:
    """The lab, its job and its guard."""

    def __init__(self, run: Run, lab: labs.Lab, watch: Watch, job: Job) -> None:
        self.run = run
        self.lab = lab
        self.watch = watch
        self.job = job
        self.kind = lab.record.hypervisor

    def check(self, what: str, good: bool, evidence: str = "") -> bool:
        """With what the guard and the job have said."""
        said = [evidence] if evidence else [self.watch.said(), self.job.output()]
        return self.run.check(f"{self.kind}: {what}", good, "\n".join(said))

    def where(self) -> dict[str, str]:
        return {guest.name: host_name(guest.host) for guest in self.lab.refresh().guests}

    def members(self, host: str) -> set[str]:
        """Guests with a process in the region of that host."""
        region = self.lab.record.regions[_HOSTS.index(host)]
        return {one.host for one in windows.read(region).members if one.phase == "active"}

    def goes_on(self, what: str) -> None:
        """The job has come to another iteration, and everybody is in the region of his host."""
        before = self.job.output()
        homes = {host: {g for g, at in self.where().items() if at == host} for host in _HOSTS}
        together = self.watch.until(lambda: all(self.members(h) == homes[h] for h in _HOSTS))
        further = self.watch.until(lambda: self.job.running() and self.job.output() != before)
        self.check(f"{what}: the job goes on, its processes in the regions of "
                   + "; ".join(f"{h}: {', '.join(sorted(g)) or 'nobody'}" for h, g in homes.items()),
                   together and further)  # fmt: skip

    def pace(self, guests: Sequence[str], rate: int) -> None:
        """Bytes a second at which these guests leave the first host."""
        record = self.lab.record
        for guest in guests:
            if self.kind == "libvirt":
                _pace_libvirt(lab_libvirt.uri_of(record.directory / _HOSTS[0]), guest, rate)
            else:
                path = record.directory / guest / qemu.qmp_name(1)
                asyncio.run(_pace_qemu(str(path), guest, rate))

    # ---- the acts

    def nothing_fails(self) -> None:
        def spares() -> list[str]:
            return [host["name"] for host in self.watch.status().get("hosts", []) if host["spare"]]

        self.check("h3 alone is spare, and nothing moves",
                   self.watch.until(lambda: spares() == ["h3"]) and not self.watch.lines("begin"))  # fmt: skip

    def withdrawn(self) -> None:
        """Two guests are about to leave when their host is well again."""
        watch, leaving = self.watch, ["g1", "g2"]
        self.pace(leaving, _SLOW)
        watch.trees.mark("h1", "smoke")
        on_the_way = watch.until(lambda: all("migrate" in watch.of("phase", "phase").get(guest, [])
                                             for guest in leaving))  # fmt: skip
        self.check("a failure of h1: g1 and g2 are on their way", on_the_way)
        watch.trees.mark("h1", None)
        watch.until(lambda: len(watch.lines("end")) == len(leaving))
        outcomes = watch.of("end", "outcome")
        self.check("it is withdrawn: g1 and g2 stay on h1, as they were told to",
                   outcomes == {guest: ["undone"] for guest in leaving}
                   and watch.of("cancel", "why") == {guest: ["h1 is well again"] for guest in leaving}
                   and [self.where()[guest] for guest in leaving] == ["h1", "h1"])  # fmt: skip
        self.goes_on("withdrawn")
        self.pace(leaving, _FAST)

    def fails(self) -> None:
        """An uncorrected error of memory: both guests of that host go to the spare one."""
        watch = self.watch
        phases, ends = len(watch.lines("phase")), len(watch.lines("end"))
        watch.trees.errors("h1", 1)
        watch.until(lambda: len(watch.lines("end")) == ends + 2)
        why = [line["move"]["why"] for line in watch.lines("begin")[-2:]]
        self.check("a memory error of h1: g1 and g2 move, and it is told why",
                   all("1 uncorrected errors" in one for one in why), "\n".join(why))  # fmt: skip
        where = self.where()
        self.check("both are on the spare host, h3; the others stay",
                   where == {"g1": "h3", "g2": "h3", "g3": "h2", "g4": "h2"}, f"{where}\n{watch.said()}")  # fmt: skip
        told = watch.of("phase", "phase", phases)
        self.check(f"the journal has every phase of both: {', '.join(told.get('g1', []))}",
                   told == {guest: _PHASES[self.kind] for guest in ("g1", "g2")}, f"{told}")  # fmt: skip
        ended = watch.of("end", "outcome", ends)
        self.check("the journal has both moves", ended == {g: ["moved"] for g in ("g1", "g2")}, f"{ended}")
        line = watch.metric('ivc_guard_moves_total{outcome="moved"}')
        self.check(f"/metrics: {line}", line.endswith(" 2.0"), line)
        self.goes_on("moved")

    def has_no_spare(self) -> None:
        """The next host fails: its guests stay, with an alarm that says why."""
        watch, begun = self.watch, len(self.watch.lines("begin"))
        watch.trees.errors("h2", 2)

        def alarms() -> dict[str, str]:
            return {one["subject"]: one["text"] for one in watch.lines("alarm")
                    if one["alarm"] == "no-target"}  # fmt: skip

        watch.until(lambda: alarms().keys() >= {"g3", "g4"})
        texts = alarms()
        good = texts.keys() == {"g3", "g4"} and all("h3: no spare: runs g1, g2" in one for one in texts.values())
        self.check("a memory error of h2, and no spare is left: an alarm for g3 and for g4", good)
        seen = set[float]()

        def has_looked() -> bool:
            seen.add(watch.status().get("stepped_at", 0.0))
            return len(seen) > _LOOKS

        looked = watch.until(has_looked)
        where = self.where()
        self.check(f"nothing moves in the next {_LOOKS} looks",
                   looked and len(watch.lines("begin")) == begun
                   and (where["g3"], where["g4"]) == ("h2", "h2"))  # fmt: skip
        self.goes_on("no spare")

    def ends(self) -> None:
        """The job, told to: every byte right, and between those who moved memory has been used since."""
        self.check("the guard ends when it is asked to", self.watch.end() == 0)
        first, second = self.lab.guests[:2]
        traces = [self.lab.run(guest, ["cat", migrate_qemu.TRACE], timeout=60).stdout
                  for guest in (first, second)]  # fmt: skip
        self.lab.run(first, ["touch", migrate_qemu.STOP], timeout=60)
        done = self.job.finish(_END)
        said = done.stdout + done.stderr
        self.run.log(said + "\n".join(traces))
        self.check("the job: every byte right, status 0",
                   done.returncode == 0 and "integrity: ok: 4 ranks" in said, said)  # fmt: skip
        after = [since_landing(said, trace, me, peer)
                 for trace, me, peer in ((traces[0], 0, 1), (traces[1], 1, 0))]  # fmt: skip
        self.check(f"between g1 and g2 {after[0]} and {after[1]} bytes by memory since they landed on h3",
                   all(after), f"{said}\n" + "\n".join(traces))  # fmt: skip


def since_landing(said: str, trace: str, me: int, peer: int) -> int:
    """Bytes by memory to a peer since it was used again after the last move: what the statistics say at the
    end, without what the trace says was sent until then. 0: it was not used again."""
    until_then = None
    for event in map(json.loads, trace.splitlines()):
        if event.get("event") == "arrived":
            until_then = None
        elif (event["rank"], event.get("peer"), event.get("to")) == (me, peer, "ACTIVE"):
            until_then = event["memory_sent_bytes"]
    sent = mpi.pairs_by_memory(said).get((me, peer), 0)
    return 0 if until_then is None else sent - int(until_then)


async def _pace_qemu(path: str, guest: str, rate: int) -> None:
    monitor = await Monitor.open(path, guest)
    if monitor is None:
        raise IvcError(f"no QEMU of {guest} answers on {path}")
    try:
        await monitor.do("migrate-set-parameters", {"max-bandwidth": rate})
    finally:
        await monitor.close()


def _pace_libvirt(uri: str, guest: str, rate: int) -> None:
    lib = libvirt.binding()
    try:
        with closing(lib.open(uri)) as connection:
            connection.lookupByName(guest).migrateSetMaxSpeed(rate >> 20)
    except lib.libvirtError as fault:
        raise IvcError(f"{guest}: {fault.get_error_message()}") from None


@contextmanager
def _job(lab: labs.Lab, one: mpis.Mpi) -> Iterator[Job]:
    wanted = migrate_qemu.Plan(0, _SIZE, [_MPI], random.randrange(1, 1 << 30))
    words, env = migrate_qemu.job_command(one, lab.guests, wanted)
    line = ssh.remote_line([*words, "--idle"], labs.mpi_env(env))
    with Job(lab.ssh_argv(lab.guests[0], line), f"integrity under {one.label}") as job:
        job.wait_for("integrity: iteration", _START)
        yield job


def _play(run: Run, hypervisor: str) -> None:
    mpi.require()
    if os.geteuid() != 0:
        raise SkipPart("a lab needs root: run with sudo")
    (one,) = mpis.named([_MPI])
    programs.program(one, one.environment(), "integrity")  # before the guests get their copies
    name = f"test-guard-{os.getpid() % 10000}"
    folder = Path(tempfile.mkdtemp(prefix="ivc-test-guard-"))
    try:
        with labs.up(
            name, len(_PLACE), hypervisor, hosts=len(_HOSTS), place=_PLACE, memory_mb=_MEMORY_MB,
            region_size=_REGION, progress=Tell(run),
        ) as lab, _job(lab, one) as job, Watch(run, lab, folder) as watch:  # fmt: skip
            play = Play(run, lab, watch, job)
            for act in (play.nothing_fails, play.withdrawn, play.fails, play.has_no_spare, play.ends):
                act()
    except MissingError as error:
        raise SkipPart(str(error)) from error
    except subprocess.TimeoutExpired as late:
        raise IvcError(f"a guest does not answer any more: {late}") from late
    finally:
        shutil.rmtree(folder)
    left = [str(path) for path in (*map(Path, lab.record.regions), lab.record.directory) if path.exists()]
    run.check(f"{hypervisor}: nothing of the lab is left", not left, "\n".join(left))


def guard(run: Run) -> None:
    _play(run, "qemu")


def guard_libvirt(run: Run) -> None:
    _play(run, "libvirt")
