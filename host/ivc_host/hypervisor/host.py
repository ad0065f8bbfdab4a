"""One host: how it is reached, and what a machine that arrives is given there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Host:
    name: str
    #: The entry point of its hypervisor, in the group `ivc.hypervisors`.
    hypervisor: str
    #: What only that hypervisor has to know: its own class `Settings`.
    settings: object
    #: The file that this host's machines share; None: they are given none.
    region: str | None = None
    #: Words of ssh that lead to it; empty: this machine.
    ssh: tuple[str, ...] = ()


def filled(text: str, words: Mapping[str, str]) -> str:
    """TEXT with the words of the inventory put in; other braces stay."""
    for word, value in words.items():
        text = text.replace(word, value)
    return text
