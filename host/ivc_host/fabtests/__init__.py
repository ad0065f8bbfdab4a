"""fabtests, libfabric's own tests, run against a provider: see docs/fabtests.md."""

from .cli import app

__all__ = ["app"]
