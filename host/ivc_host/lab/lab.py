"""Labs: bring guests up, run things in them, take them down; the same for every hypervisor.

    with lab.up("mine", guests=2) as mine:
        print(mine.mpirun(["hostname"], np=2).stdout)

Invariant: everything that a lab consists of is reachable from its name (the state directory, the
namespace mounted in it, the processes in that namespace, the region's file), so `down` needs no
record to be complete, and it undoes whatever stage an `up` had reached.
"""

from __future__ import annotations

import os
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol

from .. import paths, signals
from ..errors import LabError, MissingError, UsageError
from . import copies, hypervisor, network, process, ssh, state
from . import hosts as lab_hosts
from .hypervisor import Hypervisor
from .job import Job
from .process import Process
from .state import DEFAULT_NAME, GuestRecord, LabRecord

DEFAULT_REGION_SIZE = 64 << 20
HYPERVISORS = ("uml", "qemu", "libvirt", "xen", "xen-pvh")


class UpProgress(hypervisor.Progress, Protocol):
    """How `up` tells what it does: steps of the whole, and where each guest is."""

    def guest(self, name: str, text: str) -> None:
        """A guest has come to a new stage."""


class SilentProgress(hypervisor.SilentProgress):
    def guest(self, name: str, text: str) -> None:
        del name, text


def hypervisor_named(name: str) -> Hypervisor:
    """The mechanism of that name."""
    # Imported here so that one mechanism's needs never stand in the way of the other.
    if name == "uml":
        from .uml import UserModeLinux

        return UserModeLinux()
    if name == "qemu":
        try:
            from .qemu import Qemu
        except ModuleNotFoundError as error:
            raise MissingError(f"this version has no QEMU guests ({error})") from error

        return Qemu()
    if name == "libvirt":
        from .libvirt import Libvirt

        return Libvirt()
    if name in ("xen", "xen-pvh"):
        from .xen import Xen

        return Xen(name, "pv" if name == "xen" else "pvh")
    known = ", ".join(HYPERVISORS)
    raise UsageError(f"no hypervisor named {name!r}", hint=f"choose one of {known}")


class Lab:
    """A lab that is up. As a context manager it takes the lab down at the end."""

    def __init__(self, record: LabRecord) -> None:
        self.record = record

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def guests(self) -> list[str]:
        return [guest.name for guest in self.record.guests]

    def refresh(self) -> LabRecord:
        """The record as it is now: a guest may have moved."""
        found = state.load(self.name)
        if found is None:
            raise LabError(f"lab {self.name} is gone")
        self.record = found
        return found

    def guest_description(self) -> str:
        """What kind of guest this is, for people who judge a figure measured on it."""
        return hypervisor_named(self.record.hypervisor).guest_description()

    def __enter__(self) -> Lab:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del kind, error, trace
        self.down()

    def down(self) -> None:
        down(self.name)

    def console(self, member: str) -> Path:
        """The log of the console of a guest, or of a host that is a machine of its own."""
        self.record.member(member)
        return _console(self.record.directory, member)

    def ssh_argv(
        self, guest: str, remote: str | None = None, options: Sequence[str] = ()
    ) -> list[str]:
        """The command of this machine that logs in to a guest, or runs a shell line there.

        The guest may be a host that is a machine of its own, here and in `run`.
        """
        self.record.member(guest)
        return ssh.command(
            self.record.ssh_directory, self.record.namespace, guest, remote, options=options
        )

    def copy_argv(self, words: Sequence[str]) -> list[str]:
        """The host's scp command for these words; a guest's path is `g1:PATH`."""
        return ssh.copy_command(self.record.ssh_directory, self.record.namespace, words)

    def run(
        self,
        guest: str,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        *,
        cwd: Path | None = None,
        input: str | None = None,
        capture: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program in a guest; returns when it has ended, whatever its exit code.

        After `timeout` seconds it is ended in the guest and subprocess.TimeoutExpired is raised.
        Without `capture` it writes to this process's own outputs. Raises LabError when the guest
        cannot be reached.
        """
        # The guest keeps the program's number, so that it can be ended there: when the connection
        # goes, sshd tells it nothing.
        mark = f"/run/ivc-{uuid.uuid4().hex}"
        line = ssh.remote_line(argv, env, cwd)
        line = f"echo $$ >{mark}; trap 'rm -f {mark}' EXIT; {line}"
        command = self.ssh_argv(guest, line)
        try:
            done = subprocess.run(
                command,
                text=True,
                errors="replace",
                timeout=timeout,
                capture_output=capture,
                **({"stdin": subprocess.DEVNULL} if input is None else {"input": input}),
            )
        except BaseException:
            with signals.ignored():
                self._end_remote(guest, mark)
            raise
        if done.returncode == 255:
            self._check_reachable(guest, done)
        return done

    def mpirun(
        self,
        argv: Sequence[str],
        np: int | None = None,
        mca: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        hosts: Sequence[str] | None = None,
        timeout: float | None = None,
        *,
        options: Sequence[str] = (),
        cwd: Path | None = None,
        capture: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run an MPI program over the guests: one rank per guest unless `np` says otherwise.

        Ranks are dealt to the guests in turn, the first rank to the first guest. `mca` becomes
        `--mca KEY VALUE`, `env` is set for mpirun and for every rank. Started from the first of
        `hosts` (default: all guests).
        """
        ranks = np if np is not None else len(hosts or self.guests)
        words = [*_mpi_words(ranks, mca, env, hosts), *options, *argv]
        start = hosts[0] if hosts else self.guests[0]
        return self.run(start, words, mpi_env(env), timeout, cwd=cwd, capture=capture)

    def mpi_job(
        self,
        argv: Sequence[str],
        hosts: Sequence[str],
        mca: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        np: int | None = None,
    ) -> Job:
        """Start an MPI program as `mpirun` does, and return at once."""
        words = [*_mpi_words(np or len(hosts), mca, env, hosts), *argv]
        line = ssh.remote_line(words, mpi_env(env))
        return Job(self.ssh_argv(hosts[0], line), f"{Path(argv[0]).name} in lab {self.name}")

    def _end_remote(self, guest: str, mark: str) -> None:
        # The shell's children, because the shell itself waits for them; mpirun ends its ranks.
        shell = f"-P $(cat {mark})"
        line = f"test -f {mark} && pkill -TERM {shell} && sleep 1; pkill -KILL {shell}"
        try:
            subprocess.run(
                self.ssh_argv(guest, line),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=10,
            )
        except (subprocess.TimeoutExpired, OSError):
            pass  # the guest is past talking to; `down` ends it

    def _check_reachable(self, guest: str, done: subprocess.CompletedProcess[str]) -> None:
        """255 is ssh's own failure, or by chance the program's exit code: ask again to know."""
        again = subprocess.run(
            self.ssh_argv(guest, "true"), stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        if again.returncode == 0:
            return
        dead = not self.refresh().member(guest).alive()
        raise LabError(
            f"{_title(self.record, guest)} "
            + ("has died" if dead else f"does not answer: {(again.stderr or '').strip()}"),
            hint="see the end of its console" if dead else f"see {self.console(guest)}",
            detail=process.tail(self.console(guest)) if dead else None,
        )


def mpi_env(env: Mapping[str, str] | None) -> dict[str, str]:
    # The guests' sshd sets these two as well; said here too so that no guest depends on that.
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return {**root, **(env or {})}


def _mpi_words(
    np: int,
    mca: Mapping[str, str] | None,
    env: Mapping[str, str] | None,
    hosts: Sequence[str] | None,
) -> list[str]:
    words = ["mpirun", "-np", str(np)]
    if hosts is not None:
        words += ["--host", ",".join(hosts)]
    for key, value in (mca or {}).items():
        words += ["--mca", key, value]
    for key in env or {}:
        words += ["-x", key]
    return words


def _console(directory: Path, member: str) -> Path:
    return directory / member / "console.log"


def up(
    name: str = DEFAULT_NAME,
    guests: int = 2,
    hypervisor: str = "uml",
    *,
    region_size: int | None = DEFAULT_REGION_SIZE,
    memory_mb: int | None = None,
    hosts: int = 1,
    place: Sequence[int] | None = None,
    share: Sequence[Path] = (),
    progress: UpProgress | None = None,
    timeout: float | None = None,
) -> Lab:
    """Bring a lab up and return once every guest answers; on any failure nothing of it is left.

    `region_size` None means guests without a region; Xen's have none in any case. `hosts` deals the
    guests to that many "hosts": those of one share a region, those of two have only the network,
    and guests that can (QEMU's, Xen's) move from one to the other, which takes copies of what they
    share. With Xen each host is a machine of its own and has a name as guests do: h1. `place` says
    for each guest which host it is on, from 1, instead of dealing them out. `timeout` (seconds for
    all guests to come up) overrides the mechanism's own, which grows with the number of guests per
    processor.
    """
    tell = progress or SilentProgress()
    _check_request(name, guests, hosts, region_size, memory_mb)
    where = lab_hosts.placed(guests, hosts, place)
    mechanism = hypervisor_named(hypervisor)
    with_region = region_size is not None and mechanism.regions
    if with_region and region_size:
        _check_room(region_size * max(where))
    mechanism.prepare(tell)
    _clear_abandoned(name)
    reserved = False
    try:
        with signals.held_back():
            state.reserve(name)
            reserved = True
            record = LabRecord(
                name=name,
                hypervisor=hypervisor,
                regions=_region_names(name, hosts) if with_region else [],
                region_size=(region_size or 0) if with_region else 0,
                memory_mb=memory_mb or mechanism.default_memory_mb,
                owner=Process.of(os.getpid()),
                hosts=hosts,
                migrates=mechanism.migrates and hosts > 1,
            )
            record.copied = record.migrates or not mechanism.live_shares
            record.save()
        tell.step(f"lab {name}: network{', region' if with_region else ''} and keys")
        _make_ground(record, mechanism, where, share, tell)
        tell.step(f"lab {name}: starting {guests} guest{'s' if guests != 1 else ''}")
        _start(record, mechanism, tell)
        _wait_ready(record, timeout or _patience(mechanism, guests), tell)
        record.ready = True
        record.save()
    except BaseException:
        if reserved:
            with signals.ignored():
                _remove(name)
        raise
    return Lab(record)


def _patience(mechanism: Hypervisor, guests: int) -> float:
    return mechanism.ready_timeout * max(1.0, guests / (os.cpu_count() or 1))


def _region_names(name: str, hosts: int) -> list[str]:
    return [str(state.region_path(name, host)) for host in range(1, hosts + 1)]


def _check_request(
    name: str, guests: int, hosts: int, region_size: int | None, memory_mb: int | None
) -> None:
    state.check_name(name)
    if os.geteuid() != 0:
        raise LabError("a lab needs root", hint="run the same command with sudo")
    if not 1 <= guests <= hypervisor.MAX_GUESTS:
        raise UsageError(f"{guests} guests", hint=f"ask for 1 to {hypervisor.MAX_GUESTS}")
    if region_size is not None and (region_size < 1 << 20 or region_size & (region_size - 1)):
        raise UsageError(
            f"a region of {region_size} bytes cannot be a PCI memory bar",
            hint="ask for a power of two of at least 1M",
        )
    if memory_mb is not None and memory_mb < 128:
        raise UsageError(f"{memory_mb} MiB are too little for a guest", hint="give it 128M or more")


def _check_room(size: int) -> None:
    """Or a guest dies of SIGBUS when it comes to the pages that there are not."""
    folder = state.region_path("x").parent
    system = os.statvfs(folder)
    if size > system.f_bavail * system.f_frsize:
        raise LabError(
            f"{size >> 20} MiB for the guests to share are more than {folder} has left,"
            f" {system.f_bavail * system.f_frsize >> 20} MiB",
            hint="ask for less with --region-size; see 'df'",
        )


def _clear_abandoned(name: str) -> None:
    """What an `up` left that was killed without a chance to tidy up is not in the way."""
    record = state.load(name)
    if record is not None and record.status() == "abandoned":
        _remove(name)


def _make_ground(
    record: LabRecord,
    mechanism: Hypervisor,
    where: Sequence[int],
    share: Sequence[Path],
    tell: UpProgress,
) -> None:
    """Everything that exists before the first guest does, and on record who they will be."""
    for index, host in enumerate(where, start=1):
        guest = GuestRecord(f"g{index}", network.address(index), [], host, str(uuid.uuid4()))
        guest.pid_files = lab_hosts.pid_files(record, guest.name)
        record.guests.append(guest)
    if mechanism.own_hosts:
        record.machines = lab_hosts.machines(record)
    for member in record.members():
        (record.directory / member.name).mkdir()
    addresses = {member.name: member.address for member in record.members()}
    network.create(record.namespace, lab_hosts.taps(record))
    ssh.make_keys(record.ssh_directory, addresses)
    for region in record.regions:
        _make_region(Path(region), record.region_size)
    shared = [path for path in (paths.build(), *share) if path.is_dir()]
    record.shares = list(dict.fromkeys(map(str, shared)))
    if record.copied:
        copies.make(record.name, [Path(path) for path in record.shares], tell)
    if record.machines:
        state.store_path(record.name).mkdir(parents=True)
    if record.machines or (mechanism.migrates and record.regions):
        lab_hosts.write_inventory(record)


def _make_region(path: Path, size: int) -> None:
    try:
        with open(path, "xb") as file:
            # Now: a guest cannot ask for the pages of a device, and dies of SIGBUS at the first that there is not.
            os.posix_fallocate(file.fileno(), 0, size)
    except FileExistsError:
        raise LabError(
            f"{path} exists although no lab of that name does", hint=f"if nobody uses it: rm {path}"
        ) from None
    except OSError as error:
        path.unlink(missing_ok=True)
        raise LabError(
            f"cannot make the region {path}: {error.strerror}", hint="ask for less with --region-size; see 'df'"
        ) from error


def _start(record: LabRecord, mechanism: Hypervisor, tell: UpProgress) -> None:
    specs = lab_hosts.host_specs(record)
    mechanism.check(specs)
    for host in specs:
        started = mechanism.start(host)
        for name, processes in started.items():
            record.member(name).processes = processes
        record.save()
        for name in started:
            tell.guest(name, "booting")


def _setup_line(record: LabRecord) -> str:
    """The first command in a guest: makes the guests one cluster in Open MPI's eyes.

    One slot per guest, dealt in turn, so that more ranks than guests yield the one CPU to each
    other; no binding, for the same reason; and the lab's network, nothing else, for TCP.
    """
    parameters = {
        "orte_default_hostfile": "$HOME/.openmpi/hosts",
        "rmaps_base_mapping_policy": "node",
        "rmaps_base_oversubscribe": "1",
        "hwloc_base_binding_policy": "none",
        "btl_tcp_if_include": hypervisor.NETWORK,
        "oob_tcp_if_include": hypervisor.NETWORK,
    }
    conf = "\n".join(f"{key} = {value}" for key, value in parameters.items())
    hosts = "\n".join(f"{guest.name} slots=1" for guest in record.guests)
    return (
        "rm -rf ~/.openmpi && mkdir -p ~/.openmpi && cd ~/.openmpi && "
        f'echo "{conf}" >mca-params.conf && echo "{hosts}" >hosts'
    )


def _wait_ready(record: LabRecord, timeout: float, tell: UpProgress) -> None:
    """Return when all guests, and hosts with an address, have taken a first command over ssh."""
    begin = time.monotonic()
    lab, line = Lab(record), _setup_line(record)
    tries: dict[str, subprocess.Popen[bytes]] = {}
    waiting = {member.name: member for member in record.members()}
    try:
        while waiting:
            record.settle()
            for machine in record.machines:
                if not machine.alive():  # and with it its guests
                    raise _lost(record, machine.name, "ended while it booted")
            for name, member in list(waiting.items()):
                if name not in tries:
                    tries[name] = _try(lab, name, line)
                elif (code := tries[name].poll()) is not None:
                    del tries[name]
                    if code == 0:
                        del waiting[name]
                        tell.guest(name, f"up after {time.monotonic() - begin:.1f} s")
                        continue
                if not member.alive():
                    raise _lost(record, name, "ended while it booted")
            if waiting and time.monotonic() - begin > timeout:
                name = next(iter(waiting))
                raise _lost(record, name, f"does not answer ssh after {timeout:.0f} s")
            time.sleep(0.1)
    finally:
        for one in tries.values():
            one.kill()
            one.wait()


def _try(lab: Lab, guest: str, line: str) -> subprocess.Popen[bytes]:
    # A session of its own: Ctrl-C is for this command to handle, not for ssh to report.
    return subprocess.Popen(
        lab.ssh_argv(guest, line, ("-o", "BatchMode=yes", "-o", "ConnectTimeout=3")),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _title(record: LabRecord, member: str) -> str:
    kind = "guest" if isinstance(record.member(member), GuestRecord) else "host"
    return f"{kind} {member} of lab {record.name}"


def _lost(record: LabRecord, member: str, what: str) -> LabError:
    one, shown = record.member(member), member
    if record.machines and isinstance(one, GuestRecord):
        if not _console(record.directory, member).stat().st_size:  # it was not even created
            shown = lab_hosts.host_name(one.host)
    return LabError(
        f"{_title(record, member)} ({record.hypervisor}) {what}",
        hint=f"the end of {shown}'s console:",
        detail=process.tail(_console(record.directory, shown)),
    )


def attach(name: str = DEFAULT_NAME) -> Lab:
    """A lab that some other command has brought up."""
    state.check_name(name)
    record = state.load(name)
    if record is None:
        raise LabError(f"there is no lab named {name}", hint="see `ivc lab list`, or `ivc lab up`")
    if not record.ready:
        raise LabError(f"lab {name} is {record.status()}", hint=f"try: ivc lab down --name {name}")
    return Lab(record)


def listing() -> list[LabRecord]:
    """Every lab of this machine, in whatever state."""
    return [record for name in state.names() if (record := state.load(name)) is not None]


def down(name: str = DEFAULT_NAME) -> None:
    """Take a lab down, whatever state it is in; nothing of it is left."""
    state.check_name(name)
    if not state.directory(name).exists():
        raise LabError(f"there is no lab named {name}", hint="see `ivc lab list`")
    if os.geteuid() != 0:
        raise LabError("taking a lab down needs root", hint="run the same command with sudo")
    record = state.load(name)
    if record is not None and record.status() == "starting" and record.owner.pid != os.getpid():
        raise LabError(
            f"lab {name} is being brought up by process {record.owner.pid}",
            hint="wait for it, or interrupt that command; it then tidies up itself",
        )
    with signals.ignored():
        _remove(name)


def down_all() -> list[str]:
    """Take every lab down; returns their names."""
    names = list(state.names())
    for name in names:
        down(name)
    return names


def _remove(name: str) -> None:
    namespace = state.namespace(name)
    process.kill_members(namespace)
    network.remove(namespace)
    state.release(name)
