"""Which hosts there are, as an administrator has written it down (ivc-migrate(1)).

Machines are not listed: one is on the host whose hypervisor answers for it. So nothing here goes
stale when a machine moves.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..hypervisor import registry, settings
from ..hypervisor.faults import MigrateError
from ..hypervisor.host import Host

DEFAULT = Path("/etc/ivc/hosts.toml")


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
            hint = "see 'ivc lab list'; labs of user-mode Linux guests have none"
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
    hosts = {name: _host(f"inventory {path}: [hosts.{name}]", name, table)
             for name, table in tables.items()}  # fmt: skip
    _check_twice(path, hosts.values())
    return hosts


def _check_twice(path: str, hosts: Iterable[Host]) -> None:
    """A host by two names would have each of its machines twice, and be its own spare."""
    first: dict[tuple[object, ...], str] = {}
    for host in hosts:
        # Several on this machine are a lab; each has sockets of its own.
        other = first.setdefault((host.ssh, host.hypervisor, host.settings), host.name)
        if other != host.name:
            raise InventoryError(
                f"inventory {path}: {other} and {host.name} are one host, reached in the same way",
                hint="remove one of them",
            )


#: Of a host with any hypervisor; the first chooses which others there are.
_COMMON = ("hypervisor", "region", "ssh")


def _host(where: str, name: str, table: Any) -> Host:
    if not isinstance(table, dict):
        raise InventoryError(f"{where} is not a table")
    own = dict(table)
    try:
        which = settings.text("hypervisor", own.pop("hypervisor", "qemu"))
        kind = registry.kind(which)
        region = settings.path("region", own.pop("region")) if "region" in own else None
        ssh = settings.words("ssh", own.pop("ssh")) if "ssh" in own else None
        found = settings.of(kind.Settings, own)
        # A hypervisor's own address (libvirt's URI) may say how the host is reached.
        return Host(name, which, found, region, getattr(found, "ssh", ()) if ssh is None else ssh)
    except UsageError as fault:
        raise InventoryError(f"{where}: {fault.message}", hint=fault.hint) from None
    except ValueError as fault:
        known = ", ".join(sorted((*_COMMON, *settings.keys(kind.Settings))))
        raise InventoryError(f"{where}: {fault}", hint=f"it may have {known}") from None


def check_vm(name: str) -> str:
    """A machine's name becomes part of a path."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,62}", name):
        raise UsageError(
            f"{name!r} cannot be a machine's name", hint="or write the path of its QMP socket"
        )
    return name
