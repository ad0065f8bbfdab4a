"""A lab's ssh keys, and the words of an ssh command that reaches one of its guests.

Every lab has keys of its own, made when it comes up and gone with it. Host keys are known in
advance on both sides, so nothing is ever accepted unseen and nothing is written to the user's own
~/.ssh. One connection per guest is kept open and shared, because making one takes a slow guest a
second; the process that holds it lives in the namespace and so ends with the lab.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..errors import LabError, MissingError
from . import process
from .hypervisor import BRIDGE_ADDRESS, SshKeys


def keys_in(directory: Path) -> SshKeys:
    """The key files of a lab, where they are or are to be made."""
    return SshKeys(
        identity=directory / "id",
        host_key=directory / "host_key",
        authorized_keys=directory / "authorized_keys",
        known_hosts=directory / "known_hosts",
        hosts=directory / "hosts",
    )


def make_keys(directory: Path, addresses: Mapping[str, str]) -> SshKeys:
    """Make all key files of a lab whose guests have these names and addresses."""
    directory.mkdir(mode=0o700)
    keys = keys_in(directory)
    _keygen(keys.identity, "ivc-lab")
    _keygen(keys.host_key, "ivc-lab-guest")
    keys.authorized_keys.write_text(keys.public() + "\n")
    kind, key = keys.host_key.with_suffix(".pub").read_text().split()[:2]
    keys.known_hosts.write_text(
        "".join(f"{name},{addr} {kind} {key}\n" for name, addr in addresses.items())
    )
    keys.hosts.write_text(
        f"127.0.0.1 localhost\n{BRIDGE_ADDRESS} host\n"
        + "".join(f"{addr} {name}\n" for name, addr in addresses.items())
    )
    _config(directory).write_text(_CONFIG.format(directory=directory) + "".join(
        f"Host {name}\n    HostName {addr}\n" for name, addr in addresses.items()
    ))
    return keys


#: A guest of Xen that is saved here and restored there says nothing for minutes: a quarter of an hour, like TCP.
_CONFIG = """\
User root
IdentityFile {directory}/id
IdentitiesOnly yes
UserKnownHostsFile {directory}/known_hosts
StrictHostKeyChecking yes
LogLevel ERROR
ForwardAgent no
ForwardX11 no
ConnectTimeout 5
ServerAliveInterval 10
ServerAliveCountMax 90
ControlMaster auto
ControlPath {directory}/to-%h
ControlPersist yes
"""


def guest_files(keys: SshKeys) -> tuple[tuple[str, bytes, int], ...]:
    """What a guest has to know, where no directory of this machine tells it: path, content, mode."""
    files = (
        ("/etc/hosts", keys.hosts, 0o644),
        ("/etc/ssh/ssh_host_ed25519_key", keys.host_key, 0o600),
        ("/etc/ssh/ssh_host_ed25519_key.pub", keys.host_key.with_suffix(".pub"), 0o644),
        ("/root/.ssh/authorized_keys", keys.authorized_keys, 0o600),
        ("/root/.ssh/known_hosts", keys.known_hosts, 0o644),
        ("/root/.ssh/id_ed25519", keys.identity, 0o600),
        ("/root/.ssh/id_ed25519.pub", keys.identity.with_suffix(".pub"), 0o644),
    )
    return tuple((path, source.read_bytes(), mode) for path, source, mode in files)


def _config(directory: Path) -> Path:
    return directory / "config"


def _keygen(path: Path, comment: str) -> None:
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)]
    try:
        made = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    except FileNotFoundError as error:
        raise MissingError(
            "ssh-keygen is missing", hint="install the package openssh-client"
        ) from error
    if made.returncode != 0:
        raise LabError(f"ssh-keygen failed for {path}: {made.stderr.strip()}")


def command(
    directory: Path, namespace: Path, guest: str, remote: str | None, *, options: Sequence[str] = ()
) -> list[str]:
    """An ssh command run inside the lab's namespace; without `remote` it is a login shell."""
    argv = [*process.enter(namespace), "ssh", "-F", str(_config(directory)), *options, guest]
    return argv if remote is None else [*argv, "--", remote]


def outside_words(directory: Path, namespace: Path, name: str, address: str) -> list[str]:
    """Words of ssh that lead to a member from outside of the namespace."""
    relay = f"exec 3<>/dev/tcp/{address}/22; cat <&3 & exec cat >&3"
    proxy = shlex.join([*process.enter(namespace), "bash", "-c", relay])
    own = ["-o", "ControlMaster=no", "-o", "ControlPath=none", "-o", f"ProxyCommand={proxy}"]
    return ["-F", str(_config(directory)), *own, name]


def copy_command(directory: Path, namespace: Path, words: Sequence[str]) -> list[str]:
    """An scp command run inside the lab's namespace."""
    return [*process.enter(namespace), "scp", "-F", str(_config(directory)), *words]


def remote_line(
    argv: Sequence[str], env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> str:
    """One line for the guest's shell that runs exactly ARGV.

    In `cwd` where the guest has such a directory, otherwise in the home directory.
    """
    words = [shlex.quote(word) for word in argv]
    settings = [f"{key}={shlex.quote(value)}" for key, value in (env or {}).items()]
    if settings:
        words = ["env", *settings, *words]
    line = " ".join(words)
    return line if cwd is None else f"cd {shlex.quote(str(cwd))} 2>/dev/null; {line}"
