"""Which path is worth having between hosts: a rule of thumb, or what was measured here.

The rule is from a published measurement of an advection program on virtual machines, over a bridge and over direct functions of
the network card: it knows nothing of this network, so a measurement replaces it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..profile import figures
from ..profile.model import Profile
from ..profile.raw import size_class
from ..profile.words import percent, seconds_text

#: Shares of messages between hosts: below the first a bridge does, from the second on a direct path is worth `_WORTH`.
_LITTLE, _MUCH, _WORTH = 0.2, 0.5, 0.4


@dataclass(frozen=True)
class Advice:
    """About one placement."""

    #: Of all messages those between hosts, 0 to 1.
    share: float
    #: What these take longer by the network than by memory, for each rank; None: it was not measured.
    seconds: float | None
    #: Part of the job's time; None: one of both is not known.
    of_time: float | None

    @property
    def basis(self) -> str:
        return "rule" if self.seconds is None else "measured"

    @property
    def text(self) -> str:
        if self.seconds is not None:
            of = "" if self.of_time is None else f", {percent(self.of_time)} of its time,"
            return f"by measurement they cost a rank {seconds_text(self.seconds)}{of} that memory does not: no path gains more"
        if self.share < _LITTLE:
            return f"by rule of thumb a bridge does, below {_round(_LITTLE)}"
        if self.share < _MUCH:
            return f"between {_round(_LITTLE)} and {_round(_MUCH)} the rule of thumb says nothing: measure (--measured)"
        return f"by rule of thumb a direct path makes it {_round(_WORTH)} faster, from {_round(_MUCH)} on"

    def as_dict(self) -> dict[str, object]:
        return {"messages_between_hosts": self.share, "basis": self.basis, "seconds": self.seconds, "of_time": self.of_time,
                "text": self.text}  # fmt: skip


def _round(part: float) -> str:
    return f"{100 * part:.0f} %"


def advise(profile: Profile, placement: Sequence[int], savings: figures.Savings | None) -> Advice:
    share = figures.between(profile, {rank: str(host) for rank, host in enumerate(placement)}).messages
    seconds = None if savings is None else cost(profile, placement, savings)
    time = figures.seconds(profile)
    return Advice(share, seconds, seconds / time if seconds is not None and time else None)


def cost(profile: Profile, placement: Sequence[int], savings: figures.Savings) -> float:
    """Seconds that messages between hosts take longer than by memory, mean of the ranks, as if a rank waited for each.

    A pair's messages count as of their mean size: the profile has the sizes of all pairs together only.
    """
    lost = 0.0
    for pair in profile.between_ranks():
        if pair.messages and placement[pair.sender] != placement[pair.receiver]:
            mean = pair.bytes // pair.messages
            lost += pair.messages * figures.saving(savings, size_class(mean))
    return lost / profile.size
