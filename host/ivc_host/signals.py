"""Signals while something is made or undone that must not be left half done."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ASKS_TO_END = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def end_cleanly() -> None:
    """Let SIGTERM and SIGHUP unwind the program as Ctrl-C does, so that it tidies up."""

    def leave(number: int, frame: FrameType | None) -> None:
        del frame
        sys.exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        # Left alone when it is ignored: nohup means it.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, leave)


def ignore() -> None:
    """Signals that ask to end do nothing from now on: the program is ending."""
    for number in _ASKS_TO_END:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def held_back() -> Iterator[None]:
    """Signals that ask to end arrive after this block. Start no process in it: it would inherit."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ASKS_TO_END)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def ignored() -> Iterator[None]:
    """Signals that ask to end do nothing during this block: it undoes what they would undo."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python delivers signals to the main thread only
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _ASKS_TO_END}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
