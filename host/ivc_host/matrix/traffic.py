"""Which way bytes went between ranks: what the adapters say at the end under IVC_STATS.

The plug-in for Open MPI knows the ranks of its peers. The provider knows the names of endpoints
only: each line begins with the name of its own, so the lines of all ranks together tell which rank
a peer is. A process may have several endpoints; their traffic counts together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_PLUGIN = re.compile(
    r"ivc: rank (\d+) on host [^\n,]*, peer (\d+) [^\n]*?: memory: sent \d+ packets (\d+) bytes"
)
_PROVIDER = re.compile(
    r"ivc: rank (\d+) on host [^\n,]*, endpoint (\w+), peer endpoint (\w+): "
    r"memory: sent \d+ packets (\d+) bytes[^\n;]*; network: sent (\d+) bytes"
)


@dataclass
class Sent:
    """Bytes from one rank to another. What is not ours to carry is counted by nobody."""

    memory: int = 0
    network: int = 0


@dataclass
class Traffic:
    sent: dict[tuple[int, int], Sent]
    #: The provider speaks: then every byte between guests is ours, by network as well.
    provider: bool

    def between(self, a: int, b: int) -> Sent:
        return self.sent.get((a, b), Sent())


def parse(said: str) -> Traffic:
    """From the outputs of all ranks, in any order."""
    found = _PROVIDER.findall(said)
    rank_of = {endpoint: int(rank) for rank, endpoint, *_ in found}
    traffic = Traffic({}, bool(found))
    for rank, _, peer, memory, network in found:
        if peer in rank_of:
            sent = traffic.sent.setdefault((int(rank), rank_of[peer]), Sent())
            sent.memory += int(memory)
            sent.network += int(network)
    for rank, peer, memory in _PLUGIN.findall(said):
        traffic.sent.setdefault((int(rank), int(peer)), Sent()).memory += int(memory)
    return traffic


def wrong_paths(traffic: Traffic, where: Sequence[str], host_of: Mapping[str, int]) -> str:
    """Which pair of ranks did not take the path it should have; empty when all did.

    `where` has the guest of each rank; pairs inside a guest are the MPI's own affair.
    """
    for a in range(len(where)):
        for b in range(len(where)):
            if where[a] == where[b]:
                continue
            sent, pair = traffic.between(a, b), f"rank {a} to {b}: "
            if host_of[where[a]] == host_of[where[b]]:
                if not sent.memory:
                    return pair + "nothing went through memory"
                if sent.network:
                    return pair + f"{sent.network} bytes went through the network"
            elif sent.memory:
                return pair + "memory of another host?"
            elif traffic.provider and not sent.network:
                return pair + "nothing went through our network path"
    return ""
