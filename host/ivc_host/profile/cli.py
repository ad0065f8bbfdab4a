"""`ivc profile`: run a command and profile it, show, merge and compare profiles."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from .. import env, outputs, paths
from ..errors import IvcError, MissingError, UsageError
from ..lab import lab as labs
from . import gather, launch, measured, model, summary
from .figures import Savings
from .merge import merge, read_folders
from .raw import ProfileError


class _Group(typer.core.TyperGroup):
    """What is none of its commands is a command to run: `ivc profile -- mpiexec ...`."""

    def parse_args(self, context: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "-h", "--help"):
            args = ["run", *args]
        return super().parse_args(context, args)


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Who sends what to whom, by which path and why: ivc profile -- mpiexec ...",
)

Output = Annotated[Path, typer.Option("--output", help="The profile.")]
Html = Annotated[Path | None, typer.Option("--html", help="A report of one file as well, with plots.")]
Csv = Annotated[
    Path | None,
    typer.Option("--csv", help="The matrix of bytes as well, and beside it, as NAME-messages.csv, that of messages."),
]
Measured = Annotated[
    Path | None,
    typer.Option("--measured", help="A .json of ivc bench run with ivc and tcp: memory's gain is told in seconds, too."),
]
Job = Annotated[str | None, typer.Option("--job", help="The job, where files are of several.")]
File = Annotated[Path, typer.Argument(metavar="FILE", help="A profile.")]

_DEFAULT = Path("ivc-profile.json")


@app.command(context_settings={"allow_interspersed_args": False})
def run(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="Such as mpiexec -n 4 ./program.")],
    output: Output = _DEFAULT,
    html: Html = None,
    csv: Csv = None,
    hosts: Annotated[
        list[str] | None,
        typer.Option("--gather", metavar="HOST", help="Fetch files from there by ssh, too; may be given again."),
    ] = None,
    lab: Annotated[
        str | None, typer.Option("--lab", metavar="NAME", help="Run it in the first guest of a lab; fetch from all guests.")
    ] = None,
    measured_file: Measured = None,
    job: Job = None,
) -> None:
    """Run a command and profile its MPI job: the word run may be left out, as in ivc profile -- mpiexec -n 4 ./program.

    What it prints is passed through, and its exit status is this command's.
    """
    outputs.check(output, html, csv, _messages_file(csv))
    savings = measured.savings(measured_file) if measured_file else None
    place: launch.Place = launch.Here()
    sources: list[gather.Source] = [gather.Ssh(host) for host in hosts or []]
    if lab is not None:
        guests = labs.attach(lab)
        place = launch.InLab(guests)
        sources += [gather.Guest(guests, name) for name in guests.guests]
    else:
        launch.found(command)
    base = Path(tempfile.mkdtemp(prefix="ivc-profile-"))
    status = _run(command, place, sources, base)
    try:
        profile = _collected(sources, base, job)
        profile.command, profile.exit_status = list(command), status
        _write(profile, output, html, csv, savings)
    except IvcError as fault:
        _keep(base, fault)
        if status == 0:
            raise
        print(f"ivc: {fault}", file=sys.stderr)
        raise typer.Exit(status) from None
    shutil.rmtree(base, ignore_errors=True)
    summary.show(profile, savings, Console(stderr=True, highlight=False))
    print(f"ivc: profile in {output}" + (f", report in {html}" if html else ""), file=sys.stderr)
    raise typer.Exit(status)


def _folder(base: Path) -> Path:
    """The job's, of the same name on all hosts; what is fetched from others lies beside it."""
    return base / "job"


def _run(command: Sequence[str], place: launch.Place, sources: Sequence[gather.Source], base: Path) -> int:
    """Runs it; nothing is left here when it does not start."""
    folder = _folder(base)
    try:
        folder.mkdir()
        gather.prepare(sources, folder)
        mpi = launch.recognise(command, place)
        settings = {"IVC_STATS": f"json:{folder}"}
        try:
            settings["LD_PRELOAD"] = env.preload(env.library(paths.mpi_profile()), last=True)
        except MissingError as fault:
            print(f"ivc: calls of MPI are not counted: {fault}", file=sys.stderr)
        words, own = launch.told(command, mpi, settings, place)
        return place.run(words, own)
    except BaseException:
        shutil.rmtree(base, ignore_errors=True)
        raise


def _collected(sources: Sequence[gather.Source], base: Path, job: str | None) -> model.Profile:
    faults = gather.fetch(sources, _folder(base), base)
    files = read_folders([base])
    if files.is_empty():
        raise ProfileError("; ".join(["the job left no file", *faults]), hint=_NOTHING)
    profile = merge(files, job)
    if not files.transport:
        profile.remarks.append(f"no message went through ivc: {_NOTHING}")
    profile.remarks += faults
    profile.complete = profile.complete and not faults
    return profile


_NOTHING = (
    'does the MPI use ivc (eval "$(ivc env MPI)" before), has it ended in order, do its ranks run on hosts that'
    " --gather or --lab names, and does the MPI not carry messages of one guest itself?"
)


def _keep(base: Path, fault: IvcError) -> None:
    """What was counted is not lost with the fault; an empty folder goes."""
    if any(base.rglob("*.jsonl")):
        where = f"the files are kept in {base}, for ivc profile merge"
        fault.hint = f"{fault.hint}; {where}" if fault.hint else where
    else:
        shutil.rmtree(base, ignore_errors=True)


@app.command("merge")
def merge_files(
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER...", help="Folders of IVC_STATS=json:FOLDER.")],
    output: Output = _DEFAULT,
    html: Html = None,
    csv: Csv = None,
    measured_file: Measured = None,
    job: Job = None,
) -> None:
    """Make a profile of files that a job has left, with IVC_STATS=json:FOLDER in the environment of its ranks."""
    outputs.check(output, html, csv, _messages_file(csv))
    savings = measured.savings(measured_file) if measured_file else None
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"there is no folder {folder}", hint="name what IVC_STATS=json:FOLDER named")
    files = read_folders(folders)
    if files.is_empty():
        raise ProfileError(f"no file of a job in {', '.join(map(str, folders))}", hint=_NOTHING)
    profile = merge(files, job)
    _write(profile, output, html, csv, savings)
    summary.show(profile, savings, Console(highlight=False))


@app.command()
def show(file: File, html: Html = None, csv: Csv = None, measured_file: Measured = None) -> None:
    """Print a profile, and make a report or a matrix of it."""
    outputs.check(html, csv, _messages_file(csv))
    profile = model.load(file)
    savings = measured.savings(measured_file) if measured_file else None
    _write(profile, None, html, csv, savings)
    summary.show(profile, savings, Console(highlight=False))


@app.command()
def diff(before: File, after: File) -> None:
    """Print what has changed between two profiles: bytes, shares, paths, pairs."""
    one, other = model.load(before), model.load(after)
    if one.size != other.size:
        raise UsageError(
            f"{before} is of {one.size} ranks and {after} of {other.size}", hint="compare jobs of one size"
        )
    summary.show_difference(one, other, Console(highlight=False))


def _write(
    profile: model.Profile, output: Path | None, html: Path | None, csv: Path | None, savings: Savings | None
) -> None:
    if output is not None:
        model.save(profile, output)
    if html is not None:
        from . import report  # a plotting library takes half a second to load

        html.write_text(report.page(profile, savings))
    if csv is not None:
        model.save_matrix(profile, csv, lambda pair: pair.bytes)
        messages = _messages_file(csv)
        assert messages is not None
        model.save_matrix(profile, messages, lambda pair: pair.messages)


def _messages_file(csv: Path | None) -> Path | None:
    return None if csv is None else csv.with_name(f"{csv.stem}-messages{csv.suffix}")
