"""The one root of every fault that the host tool foresees.

The command prints such an exception as one line (plus, where there is one, the end of a log) and
leaves with its exit code. An OSError that nobody has foreseen is a line, too; a traceback therefore always means a
defect of the tool itself.
"""

from __future__ import annotations


class IvcError(Exception):
    """A foreseeable fault: says what failed and where; `hint` says what to try."""

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None, detail: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        #: Several lines of evidence, such as the end of a guest's console.
        self.detail = detail

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}; {self.hint}"


class UsageError(IvcError):
    """The user asked for something that cannot be meant."""

    exit_code = 2


class MissingError(IvcError):
    """A program, package or permission that the work needs is not there."""


class LabError(IvcError):
    """A lab could not be made, used or taken down."""
