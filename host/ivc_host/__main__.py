"""Entry point: `ivc`, or `python -m ivc_host`. Turns foreseen faults into one line each."""

from __future__ import annotations

import os
import sys

from . import signals
from .errors import IvcError


def main() -> None:
    signals.end_cleanly()
    code = _run()
    # From here on nothing is left to tidy up; a second Ctrl-C would only spoil the exit code.
    signals.ignore()
    if code in _INTERRUPTED:
        print("ivc: interrupted", file=sys.stderr)
    sys.exit(code)


#: 128 and the number of the signal, as a shell counts: SIGHUP, SIGINT, SIGTERM.
_INTERRUPTED = (129, 130, 143)


def _run() -> int | str | None:
    try:
        code = _command()
        sys.stdout.flush()  # here, where what goes wrong can be told
    except IvcError as error:
        return _report(error)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _drop_output()  # the reader has gone (`ivc ... | head`)
        return 141
    except OSError as fault:
        # Nobody has foreseen it where it happened: a full disk, a folder without permission.
        _drop_output()
        return _report(IvcError(_words(fault)))
    return code


def _command() -> int | str | None:
    from .cli import app

    try:
        app(prog_name="ivc")
    except SystemExit as leave:  # how typer ends, with the exit code of the subcommand
        return leave.code
    return 0


def _drop_output() -> None:
    """Keep the interpreter from trying once more at its end, and from saying that it cannot."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _words(fault: OSError) -> str:
    why = fault.strerror or str(fault) or type(fault).__name__
    return why if fault.filename is None else f"{os.fsdecode(fault.filename)}: {why}"


def _report(error: IvcError) -> int:
    print(f"ivc: {error}", file=sys.stderr)
    if error.detail:
        print("\n".join(f"  | {line}" for line in error.detail.splitlines()), file=sys.stderr)
    return error.exit_code


if __name__ == "__main__":
    main()
