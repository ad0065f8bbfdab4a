"""The part `model`: that it can fail, and that it knows all faults of the model."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from ivc_host import paths
from ivc_host.testing import model
from ivc_host.testing.part import Run

_ALL_SEEN = "State-vector 324 byte, depth reached 156, errors: 0\n   184281 states, stored\n"
_FOUND = (
    "pan:1: assertion violated (over==2) (at depth 57)\nWarning: Search not completed\n"
    "State-vector 324 byte, depth reached 90, errors: 1\n    54154 states, stored\n"
)


def _model(tmp_path: Path, said: str, monkeypatch: pytest.MonkeyPatch) -> model.Model:
    made = model.Model(Run(io.StringIO()), tmp_path, 100)
    monkeypatch.setattr(made, "verify", lambda *_: model.understand(said))
    return made


def test_every_fault_is_tried() -> None:
    known = model.faults((paths.project() / "src/endpoint/path.pml").read_text())
    assert sorted(known) == sorted(mutation.name for mutation in model.MUTATIONS)
    assert sorted(known.values()) == list(range(1, len(known) + 1))


@pytest.mark.parametrize(
    ("said", "good"),
    [
        (_ALL_SEEN, True),
        (_FOUND, False),
        (_ALL_SEEN + "error: max search depth too small\n", False),
        (_ALL_SEEN + "pan: out of memory\n", False),
        ("(ended after 120 s)\n", False),
    ],
)
def test_configuration_must_be_seen_whole(
    tmp_path: Path, said: str, good: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = _model(tmp_path, said, monkeypatch)
    made.check(model.CONFIGURATIONS[0])
    assert (made.run.tally.passed, len(made.run.tally.failures)) == ((1, 0) if good else (0, 1))


@pytest.mark.parametrize(
    ("said", "good"),
    [(_FOUND, True), (_ALL_SEEN, False), ("(ended after 120 s)\n", False), ("", False)],
)
def test_fault_must_be_found(
    tmp_path: Path, said: str, good: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = _model(tmp_path, said, monkeypatch)
    made.check_mutation(model.MUTATIONS[0])
    assert (made.run.tally.passed, len(made.run.tally.failures)) == ((1, 0) if good else (0, 1))


def test_model_that_does_not_compile_fails(tmp_path: Path) -> None:
    made = model.Model(Run(io.StringIO()), tmp_path, 100)
    made.check(model.CONFIGURATIONS[0])
    assert len(made.run.tally.failures) == 1
