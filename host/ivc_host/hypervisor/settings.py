"""The keys of a host in an inventory, as its hypervisor's class declares them."""

from __future__ import annotations

import dataclasses
from typing import Any, get_type_hints


def keys(kind: type) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


def of(kind: type, table: dict[str, Any]) -> object:
    """An instance of KIND from a table of TOML. ValueError says what is wrong with which key."""
    hints = get_type_hints(kind)
    values = {}
    for key, value in table.items():
        if key not in hints:
            raise ValueError(f"no such key as {key}")
        values[key] = _value(hints[key], key, value)
    return kind(**values)


def _value(hint: object, key: str, value: object) -> object:
    if hint is bool:
        if not isinstance(value, bool):
            raise ValueError(f"{key} must be true or false")
        return value
    if hint == tuple[str, ...]:
        return words(key, value)
    return text(key, value)


def text(key: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{key} must be a text in quotes")
    return value


def path(key: str, value: object) -> str:
    found = text(key, value)
    if not found.startswith("/"):
        raise ValueError(f"{key} must be a whole path, from /")
    return found


def words(key: str, value: object) -> tuple[str, ...]:
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not found or not all(isinstance(w, str) for w in found):
        raise ValueError(f"{key} must be a list of words: [..., ...]")
    return tuple(found)
