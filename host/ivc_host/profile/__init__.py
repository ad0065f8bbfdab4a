"""`ivc profile`: who sends what to whom, by which path and why: see docs/profile.md."""

from .cli import app

__all__ = ["app"]
