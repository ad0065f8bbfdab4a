"""The matrix: every MPI in every place, with real programs. See docs/matrix.md."""

from .cli import app

__all__ = ["app"]
