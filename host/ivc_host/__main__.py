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
        from .cli import app

        app(prog_name="ivc")
    except IvcError as error:
        return _report(error)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader has gone (`ivc ... | head`); keep the interpreter from saying so at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except SystemExit as leave:  # how typer ends, with the exit code of the subcommand
        return leave.code
    return 0


def _report(error: IvcError) -> int:
    print(f"ivc: {error}", file=sys.stderr)
    if error.detail:
        print("\n".join(f"  | {line}" for line in error.detail.splitlines()), file=sys.stderr)
    return error.exit_code


if __name__ == "__main__":
    main()
