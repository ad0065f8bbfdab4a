"""Parts of `mpi` and `migrate`: what jobs write under IVC_STATS=json:DIR.

Sent from i to j must be what j received from i, to the byte and the message, whatever the path
was; a rank that was killed leaves what was counted until then. What libivc-profile.so counts must
be what a program says that it has done.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import paths
from ..errors import IvcError
from ..matrix import mpis, programs
from .part import Run

#: Messages and bytes by size class, both paths together.
Traffic = Counter[tuple[str, str]]


@dataclass
class Endpoint:
    """One file."""

    head: dict[str, Any]
    #: The last state of each peer.
    peers: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: The paths that each was on.
    paths: dict[str, set[str]] = field(default_factory=dict)
    ended: bool = False


def _read(path: Path) -> Endpoint:
    head, *samples = (json.loads(line) for line in path.read_text().splitlines())
    endpoint = Endpoint(head)
    for sample in samples:
        endpoint.ended |= sample.get("end", False)
        for peer in sample.get("peers", []):
            endpoint.peers[peer["endpoint"]] = peer
            endpoint.paths.setdefault(peer["endpoint"], set()).add(peer["path"])
    return endpoint


def read(folder: Path) -> dict[str, Endpoint]:
    """All endpoints that wrote into FOLDER, by their names."""
    files = (path for path in folder.glob("*.jsonl") if not path.name.endswith(".mpi.jsonl"))
    found = [_read(path) for path in files]
    return {endpoint.head["endpoint"]: endpoint for endpoint in found}


def traffic(by_path: Mapping[str, Any]) -> Traffic:
    total: Traffic = Counter()
    for one in by_path.values():
        for what in ("messages", "bytes"):
            for size_class, n in one[what].items():
                total[what, size_class] += n
    return total


def messages(by_path: Mapping[str, Any], path: str) -> int:
    return sum(by_path[path]["messages"].values())


def differences(endpoints: Mapping[str, Endpoint]) -> Iterator[str]:
    """The pairs of which one side says other than the other."""
    for name, endpoint in endpoints.items():
        for other, peer in endpoint.peers.items():
            sent = traffic(peer["sent"])
            there = endpoints[other].peers.get(name) if other in endpoints else None
            received = traffic(there["received"]) if there else Counter()
            if sent != received:
                yield f"{name} sent {sorted(sent.items())}, {other} received {sorted(received.items())}"


def sent_by_path(endpoints: Mapping[str, Endpoint]) -> dict[str, int]:
    """Messages of all."""
    peers = [peer for endpoint in endpoints.values() for peer in endpoint.peers.values()]
    return {path: sum(messages(peer["sent"], path) for peer in peers) for path in ("memory", "network")}


#: What tests/mpi/counted.c says: to whom, messages, bytes; of which call, calls, bytes.
_SAID = re.compile(r"^counted: (\d+) (sent|call) (\w+) (\d+) (\d+)$", re.M)
#: Launcher and settings of those MPIs that are tested beside Debian's Open MPI, every byte between ranks through us.
_HYDRA = {
    "mpich": ("mpiexec", {"MPIR_CVAR_CH4_NETMOD": "ofi", "MPIR_CVAR_NOLOCAL": "1"}),
    "impi": ("mpiexec.hydra", {"I_MPI_FABRICS": "ofi"}),
}


def _wrong(said: str, folder: Path) -> list[str]:
    """What the program says, and the files do not."""
    last: dict[int, dict[str, Any]] = {}
    for path in folder.glob("*.mpi.jsonl"):
        head, *_, sample, end = (json.loads(line) for line in path.read_text().splitlines())
        last[head["rank"]] = sample if end.get("end") else {}
    claims = _SAID.findall(said)
    wrong = [] if claims else ["nothing is said"]
    for rank, kind, name, n, size in claims:
        counted = last.get(int(rank), {}).get("sent" if kind == "sent" else "calls", {}).get(name, {})
        if counted.get("messages", counted.get("calls")) != int(n) or counted.get("bytes") != int(size):
            wrong.append(f"rank {rank} {kind} {name} {n} {size}: {counted}")
    for rank, sample in last.items():
        more = set(sample.get("sent", {})) - {name for one, kind, name, *_ in claims if (one, kind) == (str(rank), "sent")}
        wrong += [f"rank {rank} sent to {name}" for name in sorted(more)]
    return wrong


def counted(
    run: Run, what: str, launcher: Sequence[str], program: Path, env: Mapping[str, str], fortran: bool = True
) -> None:
    """The program on four ranks, with libivc-profile.so in front of its MPI."""
    with tempfile.TemporaryDirectory(prefix="ivc-test-") as folder:
        words = [*launcher, "4", "env", f"LD_PRELOAD={paths.mpi_profile()}", str(program)]
        done = run.program(words, {**env, "IVC_STATS": f"json:{folder}"}, 120)
        wrong = _wrong(done.stdout, Path(folder))
        transport = list(differences(read(Path(folder))))
    run.check(f"calls are counted, {what}", done.returncode == 0 and not wrong, "\n".join([*wrong, done.stdout]))
    run.check(f"calls are counted, {what}: counts of 64 bits", done.stdout.count("large\n") == 4, done.stdout)
    in_fortran = "in Fortran" in done.stdout
    run.check(f"calls are counted, {what}: {'' if fortran else 'not '}in Fortran", in_fortran == fortran, done.stdout)
    run.check(f"calls are counted, {what}: sent is received", not transport, "\n".join(transport))


def counted_by_hydra(run: Run, region: Path) -> None:
    """MPICH's interface: MPICH and Intel MPI."""
    for key, (launcher, settings) in _HYDRA.items():
        one = mpis.named([key])[0]
        try:
            found = one.environment()
            program = programs.program(one, found, "counted")
        except IvcError as error:
            run.skipped(f"calls are counted, {key}", f"this MPI cannot be had here: {error}")
            continue
        provider = str(paths.provider())
        env = {
            "LD_LIBRARY_PATH": str(found.lib),
            "FI_PROVIDER": "ivc",
            "FI_PROVIDER_PATH": f"{provider}:{found.lib}" if key == "impi" else provider,
            "FI_TCP_IFACE": "lo",
            "IVC_REGION": str(region),
            **({"I_MPI_ROOT": str(found.folder)} if key == "impi" else {}),
            **settings,
        }
        counted(run, one.label, [str(found.folder / "bin" / launcher), "-n"], program, env, key == "impi")
