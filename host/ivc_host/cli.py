"""The `ivc` command: global options and the groups of subcommands, each in a module of its own."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib import metadata
from typing import Annotated

import typer

#: Subcommand and the module that defines its typer application.
_GROUPS = {
    "lab": "ivc_host.lab.cli",
    "demo": "ivc_host.demo",
    "test": "ivc_host.testing",
    "bench": "ivc_host.bench.cli",
    "matrix": "ivc_host.matrix",
    "region": "ivc_host.region",
    "env": "ivc_host.env",
    "fabtests": "ivc_host.fabtests",
    "guard": "ivc_host.guard.cli",
    "profile": "ivc_host.profile",
}

#: Commands without subcommands: the module, whose function has the command's name.
_COMMANDS = {
    "migrate": "ivc_host.migrate.cli",
    "attach": "ivc_host.migrate.cli",
    "detach": "ivc_host.migrate.cli",
    "save": "ivc_host.migrate.cli",
    "load": "ivc_host.migrate.cli",
    "place": "ivc_host.place.cli",
}

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="MPI between virtual machines on one host through shared memory: the host's side.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"ivc {metadata.version('ivc-host')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print version."),
    ] = False,
) -> None:
    del version


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False  # not even its package is there


def _wanted() -> list[str]:
    """What to load: the one that is called, or all of them for help and completion."""
    known = [*_GROUPS, *_COMMANDS]
    words = [word for word in sys.argv[1:] if not word.startswith("-")]
    return words[:1] if words and words[0] in known else known


# Loading only what is called keeps a plotting library's half second out of `ivc lab ssh`.
for _name in _wanted():
    if _name in _COMMANDS:
        app.command(_name)(getattr(importlib.import_module(_COMMANDS[_name]), _name))
    elif _exists(_GROUPS[_name]):
        app.add_typer(importlib.import_module(_GROUPS[_name]).app, name=_name)
