"""The packages of the host that each purpose needs: reads packages.txt, which `run` reads too."""

from __future__ import annotations

from pathlib import Path

_TABLE = Path(__file__).with_name("packages.txt")
#: The table's columns behind the purpose.
_COLUMNS = ("debian12", "debian13", "ubuntu24.04", "fedora", "opensuse", "arch")
_INSTALL = {"fedora": "dnf install", "opensuse": "zypper install", "arch": "pacman -S"}


def needed(purpose: str, column: str) -> list[str]:
    """The packages for a purpose (build, lab, demo, test) in one system's words."""
    at = 1 + _COLUMNS.index(column)
    rows = (line.split() for line in _TABLE.read_text().splitlines() if line[:1] not in ("", "#"))
    found = [row[at] for row in rows if row[0] in (purpose, "base") and row[at] != "-"]
    return list(dict.fromkeys(found))


def install_command(purpose: str) -> str:
    """What a user types to get everything for a purpose."""
    if Path("/etc/debian_version").exists():
        return f"./run setup --for {purpose}"
    family = _family()
    if family is None:
        return "your system's package manager"
    return f"{_INSTALL[family]} {' '.join(needed(purpose, family))}"


def _family() -> str | None:
    """The family of this system that the table knows beside Debian's, from /etc/os-release."""
    try:
        lines = Path("/etc/os-release").read_text().splitlines()
    except OSError:
        return None
    fields = dict(line.split("=", 1) for line in lines if "=" in line)
    like = f"{fields.get('ID', '')} {fields.get('ID_LIKE', '')}".replace('"', "").split()
    words = {"suse": "opensuse", "rhel": "fedora"}
    return next((found for one in like if (found := words.get(one, one)) in _INSTALL), None)
