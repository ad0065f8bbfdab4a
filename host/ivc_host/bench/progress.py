"""What the user sees while a long measurement runs: one line that changes, on the error output."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class Steps:
    """A spinner, the current step, a bar and the time; plain lines where there is no terminal.

    Fulfils the lab's progress contract (`step`, `guest`) as well.
    """

    def __init__(self, total: int | None = None) -> None:
        console = Console(stderr=True, highlight=False)
        self._plain = None if console.is_terminal else console
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=self._plain is not None,
        )
        self._task = self._bar.add_task("starting", total=total)

    def __enter__(self) -> Steps:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del kind, error, trace
        self._bar.stop()

    def step(self, text: str) -> None:
        """Something begins that is not counted."""
        self._show(text, 0)

    def guest(self, name: str, text: str) -> None:
        self._show(f"{name}: {text}", 0)

    def count(self, text: str) -> None:
        """One of the `total` steps begins."""
        self._show(text, 1)

    def _show(self, text: str, advance: int) -> None:
        self._bar.update(self._task, description=text, advance=advance)
        if self._plain is not None:
            self._plain.print(text, markup=False)
