"""The test command: `ivc test [PART...]`. Each part is a module's list; see docs/testing.md."""

from .cli import app

__all__ = ["app"]
