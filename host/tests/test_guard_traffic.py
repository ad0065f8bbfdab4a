"""Which machines belong together, by the profiles of their jobs."""

from __future__ import annotations

import os
from pathlib import Path

from ivc_host.guard.traffic import Profiles
from ivc_host.profile import model

GUESTS = ("g1", "g1", "g2", "g3")


def profile(seconds: float, sent: dict[tuple[int, int], int]) -> model.Profile:
    processes = [
        model.Process(rank=rank, host=host, pid=rank + 1, seconds=seconds)
        for rank, host in enumerate(GUESTS)
    ]
    pairs = [
        model.Pair(sender=a, receiver=b, sent={"network": model.Volume(messages=1, bytes=size)})
        for (a, b), size in sent.items()
    ]
    return model.Profile(size=len(GUESTS), processes=processes, pairs=pairs)


def test_bytes_in_a_second_between_machines(tmp_path: Path) -> None:
    said: list[str] = []
    profiles = Profiles(str(tmp_path), said.append)
    assert profiles.traffic() == {}
    model.save(profile(2.0, {(0, 1): 9000, (0, 2): 100, (2, 1): 60, (3, 2): 8}), tmp_path / "a.json")
    (tmp_path / "notes.txt").write_text("no profile")
    assert profiles.traffic() == {frozenset(("g1", "g2")): 80.0, frozenset(("g2", "g3")): 4.0}
    model.save(profile(1.0, {(3, 2): 6}), tmp_path / "b.json")
    assert profiles.traffic()[frozenset(("g2", "g3"))] == 10.0
    (tmp_path / "a.json").unlink()
    assert profiles.traffic() == {frozenset(("g2", "g3")): 6.0}
    assert said == []


def test_what_cannot_be_read_is_said_once(tmp_path: Path) -> None:
    said: list[str] = []
    file = tmp_path / "a.json"
    file.write_text("{")
    profiles = Profiles(str(tmp_path), said.append)
    assert profiles.traffic() == profiles.traffic() == {}
    assert len(said) == 1 and str(file) in said[0]
    model.save(profile(1.0, {(0, 2): 5}), file)
    os.utime(file, ns=(1, 1))
    assert profiles.traffic() == {frozenset(("g1", "g2")): 5.0}
    missing = Profiles(str(tmp_path / "nowhere"), said.append)
    assert missing.traffic() == missing.traffic() == {}
    assert len(said) == 2 and "nowhere" in said[1]
    assert Profiles("", said.append).traffic() == {}
