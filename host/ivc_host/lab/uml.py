"""User-mode Linux guests: a guest kernel that is a process of the host.

The guest's root is the host's root directory itself, through hostfs: read-only by `confine.py` on
the host's side and by a writable layer in the guest's memory on the guest's side (`uml-init.sh`).
So there is no image to make or to keep up to date, and every program, library and build tree is
found in the guest at the path it has on the host.
"""

from __future__ import annotations

import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from .. import packages, paths
from ..errors import LabError, MissingError
from . import hypervisor, process
from .hypervisor import GuestSpec, HostSpec, Progress
from .process import Process

_PROGRAM = "linux.uml"
#: What the guest runs first; must be executable.
_INIT = Path(__file__).with_name("uml-init.sh")
#: What the guest kernel's own tables take beside the guest's memory.
_MEMORY_EXTRA_MB = 64
#: Programs of the host that the guest's first process calls.
_NEEDED = ("insmod", "ip", "sshd", "mount", "pivot_root")


class UserModeLinux:
    """The mechanism `uml` of the contract in `hypervisor.py`."""

    name = "uml"
    ready_timeout = 60.0
    default_memory_mb = 512
    migrates = False
    own_hosts = False
    regions = True
    live_shares = True

    def prepare(self, progress: Progress) -> None:
        progress.step("user-mode Linux: the host's root directory serves as it is")
        if platform.machine() != "x86_64":
            raise MissingError(
                f"user-mode Linux guests need an x86-64 host, this is {platform.machine()}",
                hint="use --hypervisor qemu",
            )
        for program in (_PROGRAM, *_NEEDED):
            if shutil.which(program, path="/usr/sbin:/usr/bin:/sbin:/bin") is None:
                raise MissingError(
                    f"the program {program} is missing, user-mode Linux guests need it",
                    hint=f"install it with: {packages.install_command('lab')}",
                )
        paths.require_built(paths.uml_registers())

    def check(self, hosts: Sequence[HostSpec]) -> None:
        del hosts

    def start(self, host: HostSpec) -> dict[str, list[Process]]:
        return {guest.name: [self._start(guest)] for guest in host.guests}

    def _start(self, spec: GuestSpec) -> Process:
        _write_settings(spec)
        # A copy, because a kernel parameter cannot hold a path with a blank in it.
        shutil.copy(_INIT, spec.state / "init")
        confined = [
            *(sys.executable, "-m", "ivc_host.lab.confine"),
            *(str(spec.state), str(spec.memory_mb + _MEMORY_EXTRA_MB)),
            str(spec.region) if spec.region else "-",
        ]
        return process.spawn(
            [*confined, *_command_line(spec)],
            namespace=spec.namespace,
            cwd=spec.state,
            output=spec.console,
        )

    def receive(self, spec: GuestSpec) -> list[Process]:
        raise LabError(
            f"{spec.name} is a user-mode Linux guest, and those cannot migrate",
            hint="bring a lab up with --hypervisor qemu --hosts 2",
        )

    def guest_description(self) -> str:
        return (
            f"User-mode Linux {_version()}: 1 CPU, programs run at the host's speed, "
            "system calls and network are slow"
        )


def _command_line(spec: GuestSpec) -> list[str]:
    registers = paths.uml_registers()
    arguments = [
        # In two: a blank ends a name there, but none of these folders.
        *("env", f"LD_LIBRARY_PATH={registers.parent}", f"LD_PRELOAD={registers.name}"),
        _PROGRAM,
        f"mem={spec.memory_mb}M",
        *("root=none", "rootfstype=hostfs", "rootflags=/", "ro"),
        f"init={spec.state}/init",
        # The console goes to the log; no other consoles, which would start terminals.
        *("con=null", "con0=null,fd:1", "ssl=null"),
        *(f"uml_dir={spec.state}", "umid=uml"),
        f"vec0:transport=tap,ifname={spec.tap},mac={spec.mac},depth=128,gro=1",
        f"ivc.state={spec.state}",
    ]
    if spec.region is not None:
        arguments.append(f"iomem=mmapper,{spec.region}")
    return arguments


def _write_settings(spec: GuestSpec) -> None:
    settings = {
        "name": spec.name,
        "address": spec.address,
        "prefix": str(hypervisor.PREFIX_LENGTH),
        "ssh": str(spec.keys.identity.parent),
        "share": ":".join(map(str, spec.share)),
    }
    lines = (f"{key}={shlex.quote(value)}\n" for key, value in settings.items())
    (spec.state / "guest.conf").write_text("".join(lines))


def _version() -> str:
    asked = subprocess.run([_PROGRAM, "--version"], capture_output=True, text=True)
    found = re.search(r"\d+\.\d+(\.\d+)?", asked.stdout)
    return found.group() if found else "of unknown version"
