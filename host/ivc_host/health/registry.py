"""Sources of health and of load, by entry point: others add theirs without changing the project."""

from __future__ import annotations

from importlib import metadata
from typing import Any

from .contract import Context, Source
from .load import LoadContext, LoadSource
from .settings import Settings, SettingsError, checked

HEALTH = "ivc.health"
LOAD = "ivc.load"


def _class_of(group: str, name: str, kind: type, where: str) -> Any:
    known = {entry.name: entry for entry in metadata.entry_points(group=group)}
    if name not in known:
        raise SettingsError(
            f"{where}: there is no source {name}", hint=f"known: {', '.join(sorted(known))}"
        )
    try:
        found = known[name].load()
    except ImportError as fault:
        raise SettingsError(
            f"{where}: source {name} cannot be loaded: {fault}",
            hint=f"it is in {known[name].value}; is all installed that it needs?",
        ) from None
    if not (isinstance(found, type) and issubclass(found, kind)):
        raise SettingsError(f"{where}: source {name}: {known[name].value} is no {kind.__name__}")
    return found


def sources(settings: Settings, context: Context, file: str) -> list[Source[Any]]:
    made: list[Source[Any]] = []
    for name, table in settings.sources.items():
        found = _class_of(HEALTH, name, Source, f"{file}: sources.{name}")
        made.append(found(name, checked(found.Options, table, file, f"sources.{name}"), context))
    return made


def load_source(settings: Settings, context: LoadContext, file: str) -> LoadSource[Any]:
    name = settings.load.source
    found = _class_of(LOAD, name, LoadSource, f"{file}: load.source")
    options = checked(found.Options, settings.load.options, file, "load.options")
    made: LoadSource[Any] = found(name, options, context)
    return made
