"""`ivc fabtests`: libfabric's own tests against ivc, or against any other provider to compare."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from .. import outputs
from ..errors import UsageError
from . import check, sets, source
from .runner import FAILED, NOT_RUN, PASSED

app = typer.Typer(
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Run libfabric's own tests (fabtests) against a provider.",
)
_STYLES = {PASSED: "green", FAILED: "bold red", NOT_RUN: "dim"}


@app.callback()
def fabtests(
    which: Annotated[
        str, typer.Option("--sets", help=f"Sets of tests: quick, {', '.join(sets.SETS)}.")
    ] = "quick",
    provider: Annotated[str, typer.Option(help="Such as shm, or 'tcp;ofi_rxm'.")] = check.OURS,
    only: Annotated[
        str | None, typer.Option(help="Tests whose line this regular expression matches.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds for one test.")] = 60.0,
    show: Annotated[bool, typer.Option("--show", help="Print what failing tests say.")] = False,
    output: Annotated[Path | None, typer.Option("--json", help="Write a JSON file.")] = None,
) -> None:
    """Run libfabric's own tests (fabtests) against a provider."""
    names = sets.named(which)
    outputs.check(output)
    console = Console(highlight=False, soft_wrap=True)
    with console.status("fabtests") as status:
        found = source.find(status.update)
    console.print(f"fabtests {found.version} from {found.origin}, provider {provider}")
    tests = check.chosen(sets.read(found.script, names), only)
    if not tests:
        raise UsageError(f"no test matches {only!r}", hint="see docs/fabtests.md")

    def tell(verdict: check.Verdict) -> None:
        style = _STYLES[verdict.outcome]
        line = f"{verdict.result.test.line:50} [{style}]{verdict.outcome:8}[/]"
        console.print(f"{line} {verdict.result.seconds:5.1f} s  {escape(verdict.why)}".rstrip())
        for case, why in verdict.left_out:
            console.print(f"    without {case}: {escape(why)}", style="dim")
        if show and verdict.outcome == FAILED:
            console.print(escape(verdict.result.said), style="yellow")

    verdicts = check.run(found, tests, provider, timeout, tell)
    counts = Counter(verdict.outcome for verdict in verdicts)
    if output:
        data = {
            "schema": "ivc-fabtests-1",
            "fabtests": found.version,
            "origin": found.origin,
            "provider": provider,
            "tests": [verdict.as_dict() for verdict in verdicts],
        }
        output.write_text(json.dumps(data, indent=1) + "\n")
    console.print(f"{counts[PASSED]} passed, {counts[FAILED]} failed, {counts[NOT_RUN]} not run")
    raise typer.Exit(1 if counts[FAILED] else 0)
