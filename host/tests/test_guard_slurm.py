"""Nodes of a real Slurm are drained before they are emptied, and resumed when they are well.

Its daemons run in a folder of their own, on ports of loopback that are free: a controller, and a slurmd
for each of three nodes on this machine. A node is a host of the guard's, or a machine on one.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from test_guard_run import World

from ivc_host import paths

SCRIPT = paths.project() / "packaging" / "ivc-slurm"
DAEMONS = ("munged", "slurmctld", "slurmd", "scontrol", "curl")
LACKS = [name for name in DAEMONS if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
NODES = ("h2", "g1", "g2")

pytestmark = [
    pytest.mark.skipif(bool(LACKS), reason=f"{', '.join(LACKS)} is not installed"),
    pytest.mark.skipif(os.geteuid() != 0, reason="Slurm's daemons need root"),
]

CONF = """ClusterName=ivc-test
SlurmctldHost={name}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
ReturnToService=2
{health}
PartitionName=all Nodes=ALL Default=YES State=UP
"""
NODE = "NodeName={node} NodeHostname={name} NodeAddr=127.0.0.1 Port={port} CPUs=1\n"
#: slurmd passes a node's name and little else: elsewhere slurm.conf is in /etc/slurm, and where the
#: guard listens in /etc/default.
WRAPPER = """#!/bin/sh
SLURM_CONF={conf} IVC_GUARD={guard} exec {script}
"""


def free_ports(n: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Slurm:
    def __init__(self, folder: Path, guard: str) -> None:
        """With a health check where GUARD, an address, is given."""
        self.folder = folder
        self.ports = free_ports(1 + len(NODES))
        self.env = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin",
                    "SLURM_CONF": str(folder / "slurm.conf")}  # fmt: skip
        self._daemons: list[subprocess.Popen[bytes]] = []
        folder.mkdir(mode=0o755)
        (folder / "state").mkdir()
        (folder / "key").write_bytes(os.urandom(1024))
        (folder / "key").chmod(0o400)
        self._configure(guard)

    def _configure(self, guard: str) -> None:
        name, health = socket.gethostname().partition(".")[0], ""
        if guard:
            check = self.folder / "check"
            check.write_text(WRAPPER.format(conf=self.env["SLURM_CONF"], guard=guard, script=SCRIPT))
            check.chmod(0o755)
            health = f"HealthCheckProgram={check}\nHealthCheckInterval=1\nHealthCheckNodeState=ANY\n"
        text = CONF.format(name=name, ports=self.ports, folder=self.folder, health=health)
        for node, port in zip(NODES, self.ports[1:], strict=True):
            text += NODE.format(node=node, name=name, port=port)
            (self.folder / node).mkdir()
        (self.folder / "slurm.conf").write_text(text)

    def start(self) -> None:
        at = self.folder
        files = [f"--{kind}-file={at}/munge.{kind}" for kind in ("pid", "log", "seed")]
        self._start("munged", "--foreground", "--force", f"--socket={at}/munge.socket",
                    f"--key-file={at}/key", *files)  # fmt: skip
        until((at / "munge.socket").exists, "munged does not start")
        self._start("slurmctld", "-D", "-L", f"{at}/slurmctld.log")
        for node in NODES:
            self._start("slurmd", "-D", "-N", node, "-L", f"{at}/{node}.log")
        until(lambda: all("IDLE" in self.state(node)[0] for node in NODES), "no idle nodes", self.said)

    def _start(self, *words: str) -> None:
        with open(self.folder / "said", "ab") as said:
            self._daemons.append(subprocess.Popen(words, env=self.env, stdin=subprocess.DEVNULL,
                                                  stdout=said, stderr=said))  # fmt: skip

    def said(self) -> str:
        files = [self.folder / "said", *self.folder.glob("*.log")]
        return "\n".join(file.read_text()[-2000:] for file in files if file.exists())

    def control(self, *words: str) -> str:
        return subprocess.run(["scontrol", *words], env=self.env, capture_output=True, text=True).stdout

    def state(self, node: str) -> tuple[str, str]:
        """As the controller says, and the reason."""
        words = self.control("--oneliner", "show", "node", node)
        state = next((word for word in words.split() if word.startswith("State=")), "")
        return state.removeprefix("State="), words.partition(" Reason=")[2].strip()

    def is_drained(self, node: str) -> bool:
        return "DRAIN" in self.state(node)[0]

    def takes_jobs(self, node: str) -> bool:
        """Not so one with the flags DRAIN or NOT_RESPONDING, which is said as a star as well."""
        state = self.state(node)[0]
        return "IDLE" in state and "DRAIN" not in state

    def stop(self) -> None:
        for one in reversed(self._daemons):
            one.terminate()
        for one in self._daemons:
            try:
                one.wait(10)
            except subprocess.TimeoutExpired:
                one.kill()
                one.wait()


def until(true: Callable[[], bool], otherwise: str, more: Callable[[], str] = str) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end, f"{otherwise}\n{more()}"
        time.sleep(0.1)


@pytest.fixture
def world() -> Iterator[World]:
    one = World(Path(tempfile.mkdtemp(prefix="ivc-test-slurm-", dir="/dev/shm")))
    yield one
    shutil.rmtree(one.path)


def _set(world: World, before: str, after: str) -> None:
    file = world.path / "guard.toml"
    assert before in file.read_text()
    file.write_text(file.read_text().replace(before, after))


@pytest.mark.parametrize("way", ["health check", "command"])
def test_nodes_are_drained_and_resumed(world: World, way: str) -> None:
    (port,) = free_ports(1)
    _set(world, "127.0.0.1:0", f"127.0.0.1:{port}")
    slurm = Slurm(world.path / "slurm", f"http://127.0.0.1:{port}" if way == "health check" else "")
    if way == "command":
        _set(world, "[guard]\n", f'[guard]\nnodes = ["{SCRIPT}", "-"]\n')
    guard = None
    try:
        slurm.start()
        os.environ["SLURM_CONF"] = str(slurm.folder / "slurm.conf")
        slurm.control("update", "nodename=g2", "state=drain", "reason=maintenance")
        guard = world.ivc("run")
        until(lambda: world.run("status")[0] == 0, "no guard")
        _a_host_fails(world, slurm)
        _a_host_is_emptied(world, slurm)
        assert slurm.is_drained("g2") and slurm.state("g2")[1].startswith("maintenance")
    finally:
        os.environ.pop("SLURM_CONF", None)
        if guard is not None:
            guard.send_signal(signal.SIGTERM)
            print(*guard.communicate(timeout=30))
        print(slurm.said())
        slurm.stop()


def _a_host_fails(world: World, slurm: Slurm) -> None:
    """A node that is a host."""
    assert slurm.takes_jobs("h2")
    mark = world.path / "h2-root" / "etc" / "ivc" / "failing"
    mark.parent.mkdir(parents=True)
    mark.write_text('it "smells"; $(reboot)\n')
    until(lambda: slurm.is_drained("h2"), "h2 is not drained")
    why = "ivc: h2 fails: file: administrator/file: it smells ; (reboot)"
    assert slurm.state("h2")[1].startswith(why), slurm.state("h2")
    mark.unlink()
    until(lambda: slurm.takes_jobs("h2"), "h2 is not resumed", lambda: str(slurm.state("h2")))


def _a_host_is_emptied(world: World, slurm: Slurm) -> None:
    """A node that is a machine: until it is somewhere else."""
    world.rate("h1", 16 << 20)
    assert world.run("evacuate", "h1")[0] == 0
    until(lambda: slurm.is_drained("g1"), "g1 is not drained")
    assert slurm.state("g1")[1].startswith("ivc: h1 is to be emptied")
    assert "g1" in world.folder("h1").machines()
    world.rate("h1", 1e12)
    until(lambda: slurm.takes_jobs("g1"), "g1 is not resumed", lambda: str(slurm.state("g1")))
    assert "g1" not in world.folder("h1").machines()
    assert world.run("cancel", "h1")[0] == 0
