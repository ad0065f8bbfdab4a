"""The part `guard`: what it makes of a job's statistics and traces, and of the hosts that it feigns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ivc_host.health.load_proc import sample_of
from ivc_host.testing import guard as part

_SAID = (
    "ivc: rank 0 on host g1, peer 1 on host g2: memory: sent 3 packets 170 bytes, received 3 packets"
    " 70 bytes, full 0; network: sent 5 bytes, received 5 bytes\n"
)
_ARRIVED = {"rank": 0, "event": "arrived"}


def _active(peer: int, sent: int) -> dict[str, Any]:
    return {"rank": 0, "peer": peer, "from": "CONNECTED", "to": "ACTIVE", "memory_sent_bytes": sent}


@pytest.mark.parametrize(
    ("events", "bytes_"),
    [
        ([_ARRIVED, _active(1, 100)], 70),
        ([_active(1, 0), _ARRIVED, _active(1, 100)], 70),
        ([_active(1, 0), _ARRIVED, _active(2, 100)], 0),
        ([_active(1, 100), _ARRIVED], 0),
        ([_ARRIVED, _active(1, 170)], 0),
        ([], 0),
    ],
)
def test_bytes_since_landing(events: list[dict[str, Any]], bytes_: int) -> None:
    trace = "".join(json.dumps(event) + "\n" for event in events)
    assert part.since_landing(_SAID, trace, 0, 1) == bytes_


def test_a_feigned_host_does_nothing(tmp_path: Path) -> None:
    trees = part.Trees(tmp_path)

    def sample() -> Any:
        files = {f"/proc/{name}": (trees.root("h3") / "proc" / name).read_text()
                 for name in ("stat", "meminfo", "uptime")}  # fmt: skip
        return sample_of(files, 0.0, "boot")

    before = sample()
    trees._begun -= 5  # five seconds later
    trees.tick()
    after = sample()
    assert after.cpu_total - before.cpu_total == after.cpu_idle - before.cpu_idle == pytest.approx(500, abs=50)
    assert after.memory_used == before.memory_used and after.uptime > before.uptime
