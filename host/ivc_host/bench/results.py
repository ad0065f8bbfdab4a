"""Files of results: the samples of a run that is over, for `ivc bench compare`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UsageError
from .compare import Sample

#: Those whose samples lie between two looks at the floor. Of applications all parts are rows of one table.
_RUN, _APPS = "ivc-bench-1", "ivc-apps-1"


@dataclass(frozen=True)
class Results:
    #: In the order of the run, the reference first.
    sides: list[str]
    tests: list[str]
    samples: list[Sample]
    #: The tests of each table, whose rows are one family.
    tables: list[list[str]]


def read(file: Path) -> Results:
    try:
        data = json.loads(file.read_text())
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{file} is no JSON: {error}", hint="name a .json of ivc bench run") from error
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema not in (_RUN, _APPS):
        raise UsageError(f"{file} has no samples that can be compared", hint=f"its schema must be {_RUN} or {_APPS}")
    try:
        return _results(data)
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{file} is not as ivc bench writes it: {error!r}", hint="measure again") from error


def _results(data: Mapping[str, Any]) -> Results:
    samples = [Sample.from_dict(one) for one in data["samples"]]
    tests = list(dict.fromkeys(record["test"] for sample in samples for record in sample.records))
    sides = list(dict.fromkeys(sample.side for sample in samples))
    return Results(sides, tests, samples, [tests] if data["schema"] == _APPS else [[test] for test in tests])
