"""Files of results: the samples of a run that is over, for `ivc bench compare`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UsageError
from .compare import Sample

#: Those whose samples lie between two looks at the floor.
_SCHEMAS = ("ivc-bench-1", "ivc-apps-1")


@dataclass(frozen=True)
class Results:
    #: In the order of the run, the reference first.
    sides: list[str]
    tests: list[str]
    samples: list[Sample]


def read(file: Path) -> Results:
    try:
        data = json.loads(file.read_text())
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{file} is no JSON: {error}", hint="name a .json of ivc bench run") from error
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema not in _SCHEMAS:
        raise UsageError(f"{file} has no samples that can be compared", hint=f"its schema must be {' or '.join(_SCHEMAS)}")
    try:
        return _results(data)
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{file} is not as ivc bench writes it: {error!r}", hint="measure again") from error


def _results(data: Mapping[str, Any]) -> Results:
    samples = [Sample.from_dict(one) for one in data["samples"]]
    tests = dict.fromkeys(record["test"] for sample in samples for record in sample.records)
    return Results(list(dict.fromkeys(sample.side for sample in samples)), list(tests), samples)
