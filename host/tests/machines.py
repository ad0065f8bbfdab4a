"""Real QEMUs for the tests of migration: without a system in them, two hosts in one folder.

A machine without a system never lets go of a device by itself, which is a case of its own. One that
is reset does: so `Consent` plays the guest's part through a monitor of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

QEMU = "qemu-system-x86_64"
UUID = "0f8fad5b-d9cb-469f-a165-70867728950e"
SIZE = 4 << 20
SLOT = "0x10"

#: Stands in for ivc_suspend where the processes of a guest are to behave in a certain way.
_SUSPEND = """#!{python}
import json, os, sys, time
folder = {folder!r}
def log(word):
    with open(folder + "/orders", "a") as file:
        file.write(word + "\\n")
def say(event, **more):
    print(json.dumps(dict(event=event, **more)), flush=True)
mode = open(folder + "/mode").read().split()
if "--list" in sys.argv:
    say("list", guests=json.load(open(folder + "/members")))
    sys.exit(0)
log("given " + " ".join(sys.argv[-2:]))
say("ordered", vms=[sys.argv[-1]])
def about(reason):
    return {{"for": [dict(rank=3, host="g1", pid=77, slot=1, vm=sys.argv[-1], reason=reason)]}}
say("waiting", **about("it has not left the region"))
if mode[0] == "silent":
    time.sleep(float(mode[1]))
    say("timeout", seconds=float(mode[1]), **about("its heart stands still"))
    log("withdrawn")
    sys.exit(1)
if mode[0] == "old":
    log("withdrawn")
    say("refused", **about("it uses a library that does not know orders"))
    sys.exit(2)
if mode[0] == "slow":
    sys.stdin.read() if mode[1] == "for-ever" else time.sleep(float(mode[1]))
say("answered", seconds=0.012)
sys.stdin.read()
log("withdrawn")
"""


class Monitor:
    """A QMP client of its own, independent of the code under test."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(20)
        self._socket.connect(str(path))
        self._lines = self._socket.makefile("rw")
        self._lines.readline()
        self.do("qmp_capabilities")

    def do(self, command: str, **arguments: Any) -> Any:
        words = {key.replace("_", "-"): value for key, value in arguments.items()}
        self._lines.write(json.dumps({"execute": command, "arguments": words}) + "\n")
        self._lines.flush()
        while True:
            line = self._lines.readline()
            if not line:
                raise ConnectionError("QEMU has ended")
            answer = json.loads(line)
            if "error" in answer:
                raise RuntimeError(answer["error"]["desc"])
            if "return" in answer:
                return answer["return"]

    def close(self) -> None:
        with suppress(OSError):  # what was not sent to one that has ended
            self._lines.close()
        self._socket.close()


class Consent(threading.Thread):
    """A guest that lets go of the region's device: resets the machine while it has it."""

    def __init__(self, monitor: Path) -> None:
        super().__init__(daemon=True)
        self._path = monitor
        self._over = threading.Event()

    def run(self) -> None:
        with suppress(ConnectionError, BrokenPipeError):  # the machine has moved on
            self._play(Monitor(self._path))

    def _play(self, monitor: Monitor) -> None:
        try:
            while not self._over.wait(0.3):
                names = [one["name"] for one in monitor.do("qom-list", path="/machine/peripheral")]
                if "ivc0" in names:
                    monitor.do("system_reset")
        finally:
            monitor.close()

    def stop(self) -> None:
        self._over.set()
        self.join()


class World:
    """Two hosts, `a` and `b`, each with a region; machines on them; an inventory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._consents: list[Consent] = []
        for host in ("a", "b"):
            (folder / host).mkdir()
            with open(self.region(host), "wb") as file:
                file.truncate(SIZE)
        self.mode("good")
        self.members()
        self._suspend()
        self.inventory()

    def region(self, host: str) -> Path:
        return self.folder / host / "region"

    def qmp(self, host: str, vm: str = "g1") -> Path:
        return self.folder / host / f"{vm}.qmp"

    def spare(self, host: str, vm: str = "g1") -> Path:
        """The socket of a second monitor, for the test to look."""
        return self.folder / host / f"{vm}.spare"

    def third(self, host: str, vm: str = "g1") -> Path:
        """The socket of a third, for the one who plays the guest: each serves one at a time."""
        return self.folder / host / f"{vm}.third"

    def mode(self, words: str) -> None:
        (self.folder / "mode").write_text(words)

    def members(self, *groups: dict[str, Any]) -> None:
        (self.folder / "members").write_text(json.dumps(groups))

    def _suspend(self) -> None:
        tool = self.folder / "bin" / "ivc_suspend"
        tool.parent.mkdir()
        tool.write_text(_SUSPEND.format(python=sys.executable, folder=str(self.folder)))
        tool.chmod(0o755)

    def orders(self) -> list[str]:
        path = self.folder / "orders"
        return path.read_text().splitlines() if path.exists() else []

    def command(self, host: str, *words: str, vm: str = "g1", region: bool = True) -> list[str]:
        memory = f"memory-backend-file,id=ivcmem,share=on,size={SIZE},mem-path={self.region(host)}"
        device = f"ivshmem-plain,id=ivc0,memdev=ivcmem,addr={SLOT}"
        return [
            *(QEMU, "-M", "pc", "-m", "64", "-accel", "tcg", "-nodefaults", "-display", "none"),
            *("-name", vm, "-uuid", UUID),
            *("-qmp", f"unix:{self.qmp(host, vm)},server=on,wait=off"),
            *("-qmp", f"unix:{self.third(host, vm)},server=on,wait=off"),
            # Last: when it is there, so are the others.
            *("-qmp", f"unix:{self.spare(host, vm)},server=on,wait=off"),
            *(("-object", memory, "-device", device) if region else ()),
            *words,
        ]

    def incoming(self, host: str, *words: str) -> list[str]:
        """What the inventory says to start a machine that waits there."""
        command = self.command(host, "-incoming", "defer", *words, region=False)
        return [sys.executable, "-c", _LAUNCH, str(self.folder / host / "pid"), *command]

    def inventory(self, **changes: dict[str, Any]) -> Path:
        """Write it; CHANGES are keys of a host, None to leave one out."""
        text = ""
        for host in ("a", "b"):
            keys: dict[str, Any] = {
                "region": str(self.region(host)),
                "qmp": f"{self.folder}/{host}/{{vm}}.qmp",
                "listen": "tcp:127.0.0.1:0",
                "start": self.incoming(host),
            }
            keys |= changes.get(host, {})
            text += f"[hosts.{host}]\n"
            text += "".join(f"{k} = {json.dumps(v)}\n" for k, v in keys.items() if v is not None)
        path = self.folder / "hosts.toml"
        path.write_text(text)
        return path

    def boot(self, host: str = "a", *words: str, vm: str = "g1", region: bool = True) -> None:
        """Start a machine that runs on a host."""
        key = f"{host}/{vm}"
        self._processes[key] = subprocess.Popen(self.command(host, *words, vm=vm, region=region))
        wait_for(lambda: answers(self.spare(host, vm)), f"{key} does not start")

    def consent(self, host: str = "a") -> Consent:
        one = Consent(self.third(host))
        one.start()
        self._consents.append(one)
        return one

    def environment(self) -> dict[str, str]:
        clean = {key: value for key, value in os.environ.items() if not key.startswith("IVC_")}
        # The build directory has the real ivc_suspend; here the one in PATH is meant.
        return {**clean, "IVC_BUILD": str(self.folder / "nothing"),
                "IVC_INVENTORY": str(self.folder / "hosts.toml"),
                "PATH": f"{self.folder / 'bin'}:{clean['PATH']}"}  # fmt: skip

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "ivc_host", *words],
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        process = self.start(*words)
        try:
            out, error = process.communicate(timeout=timeout)
        finally:
            process.kill()
        return subprocess.CompletedProcess(process.args, process.returncode, out, error)

    def pid(self, host: str) -> int:
        """The machine that the inventory's command has started there."""
        return int((self.folder / host / "pid").read_text())

    def state(self, host: str, vm: str = "g1") -> str | None:
        """What a machine's QEMU says, None when there is none."""
        if not answers(self.spare(host, vm)):
            return None
        monitor = Monitor(self.spare(host, vm))
        try:
            return str(monitor.do("query-status")["status"])
        except OSError:
            return None
        finally:
            monitor.close()

    def device(self, host: str) -> tuple[str, int] | None:
        """The region that the machine has, and its address."""
        monitor = Monitor(self.spare(host))
        try:
            path = "/machine/peripheral/ivc0"
            memory = monitor.do("qom-get", path=path, property="memdev")
            return (
                monitor.do("qom-get", path=memory, property="mem-path"),
                monitor.do("qom-get", path=path, property="addr"),
            )
        except RuntimeError:
            return None
        finally:
            monitor.close()

    def close(self) -> None:
        for consent in self._consents:
            consent.stop()
        for process in self._processes.values():
            process.kill()
            process.wait()
        for host in ("a", "b"):
            if (self.folder / host / "pid").exists():
                kill(self.pid(host))
        shutil.rmtree(self.folder)


#: Starts a daemon, notes its number, and ends.
_LAUNCH = """
import subprocess, sys
child = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                         stderr=subprocess.DEVNULL, start_new_session=True)
open(sys.argv[1], "w").write(str(child.pid))
"""


def kill(pid: int) -> None:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        if QEMU.encode() in command:  # the number may be another's by now
            os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, FileNotFoundError):
        pass


def alive(pid: int) -> bool:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (ProcessLookupError, FileNotFoundError):
        return False
    return fields[0] not in "ZX"


def answers(path: Path) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.connect(str(path))
            return True
    except OSError:
        return False


def wait_for(done: Any, otherwise: str, timeout: float = 20) -> None:
    end = time.monotonic() + timeout
    while not done():
        assert time.monotonic() < end, otherwise
        time.sleep(0.02)
