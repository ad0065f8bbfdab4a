"""`ivc test`: runs the parts, one line each, and closes with one line of counts."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from .. import paths
from ..errors import IvcError, UsageError
from . import fabtests, guard, guests, host, libvirt, matrix, migrate, migrate_qemu, model, mpi, programs, xen
from .part import Part, Run, SkipPart, leftovers

PARTS = [
    Part("unit", "unit tests of the core, beside its code", programs.unit),
    Part("badinput", "bad input: the code and the line that it gets", programs.badinput),
    Part("processes", "several processes: exchange, streams, kills, every file mechanism",
         programs.processes),
    Part("model", "the protocol of migration, by the model checker Spin", model.model),
    Part("man", "the man pages and their examples", host.man),
    Part("mpi", "MPI programs through the plug-in, on this host", mpi.host),
    Part("migrate", "MPI jobs on this host whose ranks move between two regions", migrate.migrate),
    Part("fabtests", "libfabric's own tests: the quick set, through the provider", fabtests.quick),
    Part("uml", "two and three user-mode Linux guests", guests.uml),
    Part("qemu", "two QEMU guests with an ivshmem device", guests.qemu),
    Part("libvirt", "a guest that moves between two hosts with a libvirtd each", libvirt.libvirt),
    Part("guard", "an MPI job in four QEMU guests, and a host that fails under it", guard.guard),
    Part("guard-libvirt", "the same in guests of libvirt (only when named)", guard.guard_libvirt,
         on_demand=True),
    Part("xen", "three guests of Xen, over grants", xen.xen),
    Part("migrate-xen", "MPI jobs in two guests of Xen that move between hosts (only when named)",
         migrate_qemu.migrate_xen, on_demand=True),
    Part("migrate-qemu", "MPI jobs in three QEMU guests that move between hosts (only when named)",
         migrate_qemu.migrate_qemu, on_demand=True),
    Part("matrix", "every MPI, one version of each, between guests", matrix.matrix),
    Part("host", "the host tool's Python tests", host.host),
    Part("sanitize", "unit and process tests under address, undefined and thread sanitizers",
         programs.sanitize),
]  # fmt: skip

app = typer.Typer(
    invoke_without_command=True,
    subcommand_metavar="",
    context_settings={"help_option_names": ["-h", "--help"], "allow_interspersed_args": True},
    help="Run the tests: all parts, or those named.",
)


def _chosen(names: list[str]) -> list[Part]:
    known = {part.name: part for part in PARTS}
    for name in names:
        if name not in known:
            raise UsageError(f"no part named {name!r}", hint=f"choose among {', '.join(known)}")
    return [part for part in PARTS if part.name in names or not (names or part.on_demand)]


def _run(part: Part, log: Path) -> Run:
    with log.open("w") as file:
        run = Run(file)
        try:
            part.run(run)
        except SkipPart as skip:
            run.skipped(part.name, str(skip))
        except IvcError as error:
            run.failed(f"{part.name}: {error}", error.detail or "")
        tally = run.tally
        if not (tally.passed or tally.failures or tally.skips):
            run.failed(f"{part.name}: nothing was tested")
    return run


def _counts(run: Run) -> str:
    tally = run.tally
    words = [f"{tally.passed} passed"]
    if tally.failures:
        words.append(f"{len(tally.failures)} failed")
    if tally.skips:
        words.append(f"{len(tally.skips)} skipped")
    return ", ".join(words)


def _tell(run: Run, log: Path) -> None:
    for text in run.tally.skips:
        print(f"    skipped: {text}")
    for text in run.tally.failures:
        print(f"    FAILED: {text}")
    if run.tally.failures:
        print("\n".join(f"    | {line}" for line in run.evidence[-40:]))
        print(f"    the whole log: {log}")


def _list(as_json: bool) -> None:
    if as_json:
        print(json.dumps({part.name: part.summary for part in PARTS}, indent=2))
        return
    for part in PARTS:
        print(f"{part.name:12} {part.summary}")


@app.callback()
def test(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[PART]...", help="Parts to run.")
    ] = None,
    show: Annotated[bool, typer.Option("--list", help="List the parts.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Run the tests: all parts, or those named. Logs are kept in build/test-logs."""
    if show:
        _list(as_json)
        return
    parts = _chosen(names or [])
    logs = paths.build() / "test-logs"
    logs.mkdir(parents=True, exist_ok=True)
    totals = {"passed": 0, "failed": 0, "skipped": 0}
    results = {}
    before = leftovers()
    for part in parts:
        start = time.monotonic()
        log = logs / f"{part.name}.log"
        run = _run(part, log)
        for path in sorted(leftovers() - before):
            run.tally.failures.append(f"{part.name}: left {path} behind")
            before.add(path)
        seconds = time.monotonic() - start
        tally = run.tally
        totals["passed"] += tally.passed
        totals["failed"] += len(tally.failures)
        totals["skipped"] += len(tally.skips)
        results[part.name] = {
            "passed": tally.passed,
            "failures": tally.failures,
            "skips": tally.skips,
            "seconds": round(seconds, 1),
            "log": str(log),
        }
        if not as_json:
            print(f"{part.name:12} {_counts(run):40} {seconds:6.1f} s", flush=True)
            _tell(run, log)
    if as_json:
        print(json.dumps({"parts": results, **totals}, indent=2))
    else:
        print(f"{totals['passed']} passed, {totals['failed']} failed, {totals['skipped']} skipped")
    raise typer.Exit(1 if totals["failed"] else 0)
