"""Which tests there are: read from fabtests' own `runfabtests.sh`, so that no list can age here."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import MissingError, UsageError

#: Our names of the sets, each with the array of runfabtests.sh that holds it.
_ARRAYS = {
    "unit": "unit_tests",
    "functional": "functional_tests",
    "short": "short_tests",
    "standard": "standard_tests",
    "negative": "neg_unit_tests",
}
SETS = tuple(_ARRAYS)
#: What runfabtests.sh calls "quick", its negative unit tests included.
QUICK = ("unit", "negative", "functional", "short")
#: The unit set with its negative tests.
UNIT = ("unit", "negative")
#: Sets whose tests are one process each.
_ALONE = UNIT


@dataclass(frozen=True)
class Test:
    """One line of a list: a program and its arguments, without provider and addresses."""

    set: str
    line: str

    @property
    def words(self) -> list[str]:
        return shlex.split(self.line)

    @property
    def program(self) -> str:
        return self.words[0]

    @property
    def alone(self) -> bool:
        """One process; the others are a server and a client."""
        return self.set in _ALONE

    @property
    def by_address(self) -> bool:
        """Connects to node and port, as connected endpoints do; the others first exchange the
        addresses that their providers gave them, over a socket of their own. fi_poll cannot."""
        connected = "-e msg" in self.line or self.program.startswith("fi_msg")
        if self.program == "fi_msg_inject":  # reliable datagrams, for all its name
            connected = False
        return connected or self.program in ("fi_cm_data", "fi_poll")

    @property
    def negative(self) -> bool:
        """Passes when the program finds no provider."""
        return self.set == "negative"


def _array(script: str, name: str) -> list[str]:
    found = re.search(rf"^{name}=\((.*?)^\)", script, re.M | re.S)
    return re.findall(r'^\s*"([^"]*)"', found[1], re.M) if found else []


def named(text: str) -> list[str]:
    """The sets that these words mean."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words or [text]:
        if word not in (*SETS, "quick"):
            raise UsageError(
                f"no set named {word!r}", hint=f"choose among quick, {', '.join(SETS)}"
            )
    return list(dict.fromkeys(n for word in words for n in (QUICK if word == "quick" else [word])))


def read(script: Path, names: Sequence[str] = QUICK) -> list[Test]:
    """The tests of these sets, in their order."""
    try:
        text = script.read_text()
    except OSError as error:
        raise MissingError(f"cannot read {script}: {error.strerror}") from error
    tests = [Test(name, line) for name in names for line in _array(text, _ARRAYS[name])]
    if not tests:
        raise MissingError(f"{script} lists no tests of {', '.join(names)}")
    return tests
