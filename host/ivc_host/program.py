"""A program of this machine that is run to its end, and what it says.

It never outlives the call, whatever ends that: a time-out, Ctrl-C or an error on our side.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: How long one that is to end may take for that; mpirun ends its ranks.
_GRACE = 5.0


@dataclass(frozen=True)
class Ended:
    #: None: it took too long, and was ended.
    code: int | None
    said: str
    #: What it said on standard error, if that was asked for; else it is among the rest.
    errors: str


def run(
    argv: Sequence[str],
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float | None = 300.0,
    *,
    errors_apart: bool = False,
    session: bool = True,
) -> Ended:
    """`env`: all of its environment; None: ours. With a `session` of its own all that it has started ends with it,
    and Ctrl-C reaches it through us alone."""
    child = subprocess.Popen(
        argv,
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if errors_apart else subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=session,
    )
    try:
        said, errors = child.communicate(timeout=timeout)
        code: int | None = child.returncode
    except subprocess.TimeoutExpired:
        end(child, session)
        said, errors = child.communicate()
        code = None
    except BaseException:
        end(child, session)
        raise
    return Ended(code, said, errors or "")


def end(child: subprocess.Popen[Any], session: bool, grace: float = _GRACE) -> None:
    """Kindly first; with all of its `session`, if it has one."""
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(grace)
        except subprocess.TimeoutExpired:
            pass
    try:
        if session:
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()
    except ProcessLookupError:
        pass
    child.wait()
