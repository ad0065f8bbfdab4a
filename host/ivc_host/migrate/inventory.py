"""Which hosts there are, as an administrator has written it down (ivc-migrate(1)).

Machines are not listed: one is on the host whose hypervisor answers for it. So nothing here goes
stale when a machine moves.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UsageError
from .machine import MigrateError

DEFAULT = Path("/etc/ivc/hosts.toml")
_MECHANISMS = ("qemu", "xen")


@dataclass(frozen=True)
class Host:
    """One host: how its machines are reached, and what a machine that arrives is given."""

    name: str
    #: Path of a machine's QMP socket, with `{vm}` for its name; empty where there is no QEMU.
    qmp: str = ""
    hypervisor: str = "qemu"
    #: The file that this host's machines share; None: they are given none.
    region: str | None = None
    #: Words of ssh that lead to it; empty: this machine.
    ssh: tuple[str, ...] = ()
    #: Where a migration is received, as QEMU writes it; port 0 is any that is free.
    listen: str = "tcp:127.0.0.1:0"
    #: The command that makes a place for an arriving machine; empty: somebody has made one.
    start: tuple[str, ...] = ()
    #: The region's device, where a machine has had none before.
    device: str = "ivc0"
    memory: str = "ivcmem"
    bus: str | None = None
    address: str | None = None
    #: Of Xen: the name by which other hosts' `xl` reaches it, when it is another; and a folder that all
    #: of them have, for guests that cannot move while they run.
    peer: str | None = None
    store: str | None = None


class InventoryError(MigrateError):
    """The inventory cannot be used as it is."""


@dataclass(frozen=True)
class Inventory:
    path: str
    hosts: Mapping[str, Host]

    def host(self, name: str) -> Host:
        if name not in self.hosts:
            known = ", ".join(self.hosts) or "none"
            raise UsageError(f"{self.path}: there is no host {name}", hint=f"it has {known}")
        return self.hosts[name]


def lab_inventory(lab: str) -> Path:
    return Path("/run/ivc/lab") / lab / "hosts.toml"


def chosen(path: Path | None, lab: str | None) -> Path:
    """The file that the options and the environment mean."""
    if path is not None and lab is not None:
        raise UsageError("--inventory and --lab name two inventories", hint="give one of them")
    if lab is not None:
        return lab_inventory(lab)
    return path or Path(os.environ.get("IVC_INVENTORY") or DEFAULT)


def load(path: Path) -> Inventory:
    try:
        text = path.read_text()
    except FileNotFoundError:
        hint = "write one (see ivc-migrate(1)), or name another with --inventory or --lab"
        if path.parent.parent == Path("/run/ivc/lab"):
            hint = "see 'ivc lab list'; only labs of QEMU and Xen guests have one"
        raise InventoryError(f"inventory {path}: no such file", hint=hint) from None
    except OSError as fault:
        raise InventoryError(f"inventory {path}: {fault.strerror}") from None
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as fault:
        raise InventoryError(f"inventory {path}: not TOML: {fault}") from None
    return Inventory(str(path), _hosts(str(path), data))


def _hosts(path: str, data: dict[str, Any]) -> dict[str, Host]:
    tables = data.get("hosts")
    if not isinstance(tables, dict) or not tables or len(data) != 1:
        raise InventoryError(f"inventory {path}: needs tables [hosts.NAME] and nothing else")
    return {name: _host(f"inventory {path}: [hosts.{name}]", name, table)
            for name, table in tables.items()}  # fmt: skip


_TEXTS = ("qmp", "hypervisor", "region", "listen", "device", "memory", "bus", "address",
          "peer", "store")  # fmt: skip
_WORDS = ("ssh", "start")


def _host(where: str, name: str, table: Any) -> Host:
    if not isinstance(table, dict):
        raise InventoryError(f"{where} is not a table")
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key in _TEXTS:
            values[key] = _text(where, key, value)
        elif key in _WORDS:
            values[key] = _words(where, key, value)
        else:
            known = ", ".join(sorted((*_TEXTS, *_WORDS)))
            raise InventoryError(f"{where}: no such key as {key}", hint=f"it may have {known}")
    _check(where, values)
    return Host(name=name, **values)


def _text(where: str, key: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise InventoryError(f"{where}: {key} must be a text in quotes")
    return value


def _words(where: str, key: str, value: Any) -> tuple[str, ...]:
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, list) or not words or not all(isinstance(w, str) for w in words):
        raise InventoryError(f"{where}: {key} must be a list of words: [..., ...]")
    return tuple(words)


def _check(where: str, values: dict[str, Any]) -> None:
    if "{vm}" not in values.get("qmp", "") and values.get("hypervisor") != "xen":
        raise InventoryError(
            f"{where}: needs qmp, the path of a machine's QMP socket with {{vm}} for its name",
            hint='such as qmp = "/run/vm/{vm}.qmp"',
        )
    if values.get("hypervisor", "qemu") not in _MECHANISMS:
        raise InventoryError(
            f"{where}: hypervisor {values['hypervisor']} is not known",
            hint=f"known: {', '.join(_MECHANISMS)}",
        )
    for key in ("qmp", "region"):
        if not values.get(key, "/").startswith("/"):
            raise InventoryError(f"{where}: {key} must be a whole path, from /")
    listen = values.get("listen", "unix:")
    if not re.match(r"unix:|tcp:(?!0\.0\.0\.0:|\[?::\]?:|:)[^/]+:\d+$", listen):
        raise InventoryError(
            f"{where}: cannot listen on {listen}",
            hint="write tcp:ADDRESS:PORT with the address that the other hosts use, or unix:PATH",
        )


def check_vm(name: str) -> str:
    """A machine's name becomes part of a path."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,62}", name):
        raise UsageError(
            f"{name!r} cannot be a machine's name", hint="or write the path of its QMP socket"
        )
    return name


def anonymous(socket: str, region: str | None, listen: str | None) -> Host:
    """A host of which only one machine's QMP socket is known."""
    path = os.path.realpath(socket)
    return Host(name=path, qmp=path, region=region, listen=listen or "tcp:127.0.0.1:0")
