"""guard.toml, beside the inventory: which sources are asked, and what counts as what.

Every key has a default; a file that is not there is an empty one.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..errors import UsageError

NAME = "guard.toml"
#: Asked when guard.toml has no table of sources: they need nothing but files that every Linux has.
DEFAULT_SOURCES = ("file", "clock", "edac", "thermal", "links", "aer")


class SettingsError(UsageError):
    """guard.toml cannot be used as it is."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Bmc(_Table):
    """How a host's management controller is reached."""

    #: IPMI over LAN, "ADDRESS" or "ADDRESS:PORT".
    ipmi: str = ""
    #: The cipher suite of IPMI 2.0; None: what ipmitool agrees on with it, which old ones cannot.
    ipmi_cipher: int | None = Field(default=None, ge=0, le=17)
    #: Redfish, "https://ADDRESS".
    redfish: str = ""
    user: str = ""
    password_file: str = ""
    #: The certificates that its https is checked with; empty: the system's.
    ca_file: str = ""


class HostSettings(_Table):
    #: Other names of the host: as Prometheus's label, an alert or a certificate has them.
    aliases: list[str] = []
    #: Never a spare.
    reserved: bool = False
    #: Bytes in use when it is idle; None: the least that was seen since it booted.
    idle_memory: int | None = Field(default=None, ge=0)
    bmc: Bmc = Bmc()
    #: A folder that stands for its root: of a host that is none, as in a lab.
    root: str = ""


class Hysteresis(_Table):
    #: Failing readings in a row until a host is failing, and good ones until a warning is over.
    confirm: int = Field(default=2, ge=1)
    #: Seconds of good readings after which a failing host is ok again; None: only by hand.
    recover: float | None = Field(default=None, gt=0)


class LoadSettings(_Table):
    source: str = "proc"
    #: Seconds, and percent of processor, memory and disk: the rule of a spare host.
    window: float = Field(default=1800.0, ge=1)
    limit: float = Field(default=1.0, gt=0, le=100)
    #: The part of the window that samples must cover.
    coverage: float = Field(default=0.9, gt=0, le=1)
    options: dict[str, Any] = {}


class GuardSettings(_Table):
    """What `ivc guard run` does, and when."""

    #: Seconds between two looks at all hosts, and for one host to answer in.
    interval: float = Field(default=30.0, ge=1)
    timeout: float = Field(default=20.0, gt=0)
    policy: Literal["spare-only", "any-with-room"] = "spare-only"
    #: Moves at once, into or out of one host, and in all.
    per_host: int = Field(default=2, ge=1)
    total: int = Field(default=8, ge=1)
    #: The share of hosts that may look sick; beyond it nothing moves.
    breaker: float = Field(default=1 / 3, gt=0, le=1)
    #: Failed moves of one machine until it stays, and seconds after the first; each further one doubles it.
    tries: int = Field(default=3, ge=1)
    back_off: float = Field(default=60.0, ge=0)
    #: MiB of each host's memory that no machine gets.
    reserve: int = Field(default=1024, ge=0)
    #: Seconds of one move, as in ivc-migrate(1).
    suspend: float = Field(default=10.0, gt=0)
    detach: float = Field(default=20.0, gt=0)
    stall: float = Field(default=30.0, ge=1)
    #: The folder of the journal; empty: /var/lib/ivc/guard.
    journal: str = ""
    #: The command that tells a scheduler which nodes to drain and to resume; empty: nobody is told.
    nodes: list[str] = []
    #: A folder of profiles (ivc-profile(1)) that tell which machines belong together; empty: none.
    profiles: str = ""
    #: Where commands reach the guard, and where Prometheus does (empty: not at all).
    socket: str = "/run/ivc-guard.sock"
    listen: str = Field(default="127.0.0.1:9474", pattern=r"^$|^[^:\[\]]+:\d+$|^\[[^\]]+\]:\d+$")


class Settings(_Table):
    guard: GuardSettings = GuardSettings()
    #: Where what was read is kept; empty: a file for each inventory below /var/lib/ivc/guard.
    state: str = ""
    hysteresis: Hysteresis = Hysteresis()
    load: LoadSettings = LoadSettings()
    hosts: dict[str, HostSettings] = {}
    sources: dict[str, dict[str, Any]] = {name: {} for name in DEFAULT_SOURCES}


ModelT = TypeVar("ModelT", bound=BaseModel)


def checked(model: type[ModelT], data: Any, where: str, prefix: str = "") -> ModelT:
    """DATA as MODEL, or a SettingsError that names the file, the key and what is allowed."""
    try:
        return model.model_validate(data)
    except ValidationError as fault:
        lines = [_line(model, error["loc"], error["type"], error["msg"], prefix)
                 for error in fault.errors()]  # fmt: skip
        raise SettingsError(f"{where}: {'; '.join(lines)}") from None


def _line(
    model: type[BaseModel], at: tuple[int | str, ...], kind: str, text: str, prefix: str
) -> str:
    key = ".".join([*([prefix] if prefix else []), *map(str, at)])
    if kind == "extra_forbidden":
        return f"{key}: no such key; it may have {', '.join(_keys(model, at[:-1]))}"
    return f"{key}: {text[:1].lower()}{text[1:]}"


def _keys(model: type[BaseModel], at: tuple[int | str, ...]) -> list[str]:
    """The keys of the table at that place."""
    schema: dict[str, Any] = model.model_json_schema()
    here = schema
    for step in at:
        here = _resolved(schema, here)
        if here.get("type") == "array":
            here = here["items"]
        else:
            here = here.get("properties", {}).get(step) or here["additionalProperties"]
    return sorted(_resolved(schema, here).get("properties", {}))


def _resolved(schema: dict[str, Any], here: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in here:
        found: dict[str, Any] = schema["$defs"][here["$ref"].rsplit("/", 1)[-1]]
        return found
    return here


def load(path: Path, known_hosts: list[str] | None) -> Settings:
    """The file's settings; KNOWN_HOSTS are the inventory's, None where that is not looked at."""
    try:
        data = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return Settings()
    except OSError as fault:
        raise SettingsError(f"{path}: {fault.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as fault:
        raise SettingsError(f"{path}: not TOML: {fault}") from None
    settings = checked(Settings, data, str(path))
    if known_hosts is None:
        return settings
    for name in settings.hosts:
        if name not in known_hosts:
            raise SettingsError(
                f"{path}: hosts.{name}: the inventory has no such host",
                hint=f"it has {', '.join(known_hosts)}",
            )
    _check_names(path, settings, known_hosts)
    return settings


def _check_names(path: Path, settings: Settings, known_hosts: list[str]) -> None:
    """No alias may mean two hosts: a reading would be another host's."""
    owners = {name: name for name in known_hosts}
    for name, host in settings.hosts.items():
        for alias in host.aliases:
            if owners.setdefault(alias, name) != name:
                raise SettingsError(
                    f"{path}: hosts.{name}.aliases: {alias} is {owners[alias]} as well",
                    hint="give each name to one host",
                )


def secret(file: str, what: str) -> str:
    """The first line of a file with a password or a token."""
    try:
        return Path(file).read_text().splitlines()[0].strip()
    except (OSError, UnicodeDecodeError) as fault:
        why = fault.strerror if isinstance(fault, OSError) else "it is not text"
        raise SettingsError(f"{what}: cannot read {file}: {why}") from None
    except IndexError:
        raise SettingsError(f"{what}: {file} is empty") from None
