"""Which of the processes in a region are a machine's: those that an order must name.

A process tells its guest's identity (64 bits of the guest's product UUID, where it may read it) and
its host name. The host knows the machine's UUID and name. What fits either is taken; when processes
are left that fit no machine, nothing is done: the device might be pulled from under a job.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..hypervisor.faults import MigrateError
from .order import Group

#: The word for "order nobody".
NOBODY = "none"


def identity_of(text: str) -> str:
    """What a process makes of its product UUID, or of IVC_VM: FNV-1a, 64 bits, never 0."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{value or 1:016x}"


def _short(host: str) -> str:
    return host.split(".", 1)[0]


def _guests(groups: Iterable[Group]) -> frozenset[int]:
    return frozenset(number for group in groups for number in group.guests)


def of_machine(groups: Sequence[Group], names: Sequence[str], uuid: str | None) -> list[Group]:
    """The groups that are a machine's, by its UUID and by its names.

    Where an identity fits, of those with a fitting host name only that guest's: another guest may have
    the same first name in another domain.
    """
    identities = {identity_of(text) for text in (*names, *([uuid] if uuid else []))}
    short = {_short(name) for name in names if name}
    known = _guests(group for group in groups if group.identity in identities)
    return [
        group
        for group in groups
        if group.identity in identities
        or (short & {_short(host) for host in group.hosts} and (not known or group.guests & known))
    ]


def choose(
    groups: Sequence[Group],
    names: Sequence[str],
    uuid: str | None,
    others: Sequence[str],
    said: str | None,
) -> tuple[list[str], int]:
    """Whom to order away, and how many processes that is at least.

    OTHERS are the names of the other machines of that host: processes of theirs are no reason to
    stop. SAID is the user's word for the guest, which may be mistyped.
    """
    if said == NOBODY:
        return [], 0
    theirs = [group for name in others for group in of_machine(groups, [name], None)]
    strange = [group for group in groups if group not in theirs]
    if said is not None:
        meant = [group for group in groups if _is_meant(group, said)]
        # A guest without a job is in no region. Processes of who knows whom may be its own, though.
        if not meant and strange:
            raise _nobody(f"nobody of {said!r} is in the region", strange)
        _refuse_several(said, meant)
        return [said], sum(group.count for group in meant)
    ours = of_machine(groups, names, uuid)
    if ours:
        _refuse_several(names[0], ours)
        return [group.identity for group in ours], sum(group.count for group in ours)
    if strange:
        raise _nobody(f"none of the processes in the region is known to be of {names[0]}", strange)
    # Nobody is there: an order all the same, for those who would come meanwhile.
    return [identity_of(uuid or names[0])], 0


def _is_meant(group: Group, said: str) -> bool:
    """As ivc_suspend takes it: an identity, what it was made of, or a host name."""
    return said in group.hosts or group.identity in (
        said.lower(), identity_of(said), identity_of(said.lower())
    )  # fmt: skip


def _refuse_several(name: str, groups: Sequence[Group]) -> None:
    if len(_guests(groups)) > 1:
        raise MigrateError(
            f"{name!r} may be any of several guests in the region: {', '.join(map(str, groups))}",
            hint="name one with --guest by its UUID or IVC_VM; where those are equal too, as in"
            " copies of one snapshot, start its jobs with an IVC_VM of its own",
        )


def _nobody(what: str, strange: Sequence[Group]) -> MigrateError:
    return MigrateError(
        f"{what}; there are {', '.join(map(str, strange))}",
        hint=f"name its guest with --guest, or say --guest {NOBODY} if it has none of them",
    )
