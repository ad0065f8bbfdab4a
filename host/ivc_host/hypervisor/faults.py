"""What can go wrong with a machine, as far as it is foreseen."""

from __future__ import annotations

from ..errors import IvcError


class MigrateError(IvcError):
    """A machine was not moved, attached or detached; it is where the text says."""


class MachineError(IvcError):
    """A hypervisor did not do what it was asked; the text has its reason."""


class GoneError(MachineError):
    """The machine, or the connection to its hypervisor, has ended."""


class SilentError(GoneError):
    """No answer: it may have ended, be stopped, or be out of reach; a command may yet be done."""
