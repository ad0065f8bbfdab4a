"""This machine as a ground: the ranks are processes of it.

A job has a process namespace of its own, so the kernel ends with it whatever it has started, and
nothing of anybody else's; it has a /dev/shm, with a region in it, and an /etc/hosts of its own. To the
MPI its ranks are on two hosts, by name, as if in two guests with that region in common: ranks of one
host would have windows that those of two guests have not.
"""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from .. import paths, program
from ..errors import MissingError
from .ground import TURN_FILE, TURN_MS, Job

_ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT")
#: The shell stays: it is the namespace's first process, for which signals have other rules.
_ALONE = (
    "unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--ipc", "sh", "-c",
    'mount -t tmpfs tmpfs /dev/shm && truncate -s 256M "$IVC_REGION" && '
    'mount --bind hosts /etc/hosts && "$@"; exit $?', "job",
)  # fmt: skip
#: As in a guest (guests.py): each of the ranks that share a processor gets its turn. Many an MPI
#: gives none away over tcp, and four ranks on two processors then take a minute for one test.
_FAIR = ("chrt", "--rr", "1")


class Here:
    name = "here"
    here = True

    def __init__(self, hosts: int, folder: Path) -> None:
        self.guests = [f"host-{number}" for number in range(hosts)]
        self.host_of = dict.fromkeys(self.guests, 0)
        # Addresses that no interface has, and that answer all the same: a host whose address an
        # interface has is taken for this one.
        names = [f"127.0.1.{number} {host}\n" for number, host in enumerate(self.guests, 1)]
        (folder / "hosts").write_text(f"127.0.0.1 localhost {platform.node()}\n{''.join(names)}")
        self.notes = str(folder / "notes")
        self._folder = folder
        # As in a guest, nothing of the user's own settings counts.
        self._env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(folder)}
        self._env |= {"TMPDIR": str(folder), "LANG": "C.UTF-8", "IVC_REGION": "/dev/shm/region"}
        self._env |= {name + end: "1" for name in _ROOT for end in ("", "_CONFIRM")}

    def run(self, argv: Sequence[str], env: Mapping[str, str], timeout: float) -> Job:
        begin = time.monotonic()
        give_way = paths.build() / "tests" / "mpi" / "give_way.so"
        env = {**env, "LD_PRELOAD": str(give_way)}
        said, code = self._run([*_ALONE, *_FAIR, *argv], env, timeout)
        return Job(code, said, time.monotonic() - begin)

    def everywhere(self, line: str, timeout: float = 60) -> list[str]:
        return [self._run(["sh", "-c", line], {}, timeout)[0]]

    def _run(
        self, argv: Sequence[str], env: Mapping[str, str], timeout: float
    ) -> tuple[str, int | None]:
        """What it said, and how it ended: None when it took too long."""
        # The session's end is that of the namespace's maker; the kernel then ends the namespace's first process, and all.
        done = program.run(argv, {**self._env, **env}, self._folder, timeout)
        return done.said, done.code


@contextmanager
def up(hosts: int) -> Iterator[Here]:
    """This machine, as so many hosts. Meanwhile its round robin has shorter turns."""
    if os.geteuid() != 0:
        raise MissingError("namespaces need root", hint="run with sudo")
    turn = Path(TURN_FILE)
    before = turn.read_text()
    with tempfile.TemporaryDirectory(prefix="ivc-here-") as scratch:
        try:
            turn.write_text(str(TURN_MS))
            yield Here(hosts, Path(scratch))
        finally:
            turn.write_text(before)
