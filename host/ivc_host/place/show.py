"""What `ivc place` prints: both placements, for people and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..profile import figures, model
from ..profile.words import bytes_text, count_text, percent
from . import advice, solve
from .ranks import Plan, What

if TYPE_CHECKING:  # what it loads to ask hypervisors, placing ranks does without
    from . import machines as machine_plans

_OF_HOST = 16


@dataclass(frozen=True)
class Side:
    """One placement."""

    name: str
    #: Bytes, or messages.
    between_hosts: int
    #: None: there is one.
    between_switches: int | None
    path: advice.Advice

    def as_dict(self) -> dict[str, object]:
        return {"between_hosts": self.between_hosts, "between_switches": self.between_switches, "path": self.path.as_dict()}


#: The present one and the proposed one.
Sides = tuple[Side, Side]


def of_ranks(profile: model.Profile, plan: Plan, savings: figures.Savings | None) -> Sides:
    def side(name: str, hosts: solve.Placement) -> Side:
        return Side(name, plan.between(hosts), plan.between_switches(hosts), advice.advise(profile, hosts, savings))

    return side(plan.origin, plan.present.hosts), side("as proposed", plan.proposed.hosts)


def of_machines(profile: model.Profile, plan: machine_plans.Plan, savings: figures.Savings | None) -> Sides:
    def side(name: str, at: solve.Placement) -> Side:
        return Side(name, plan.between(at), None, advice.advise(profile, plan.of_ranks(profile, at), savings))

    return side("as it is", plan.world.present), side("as proposed", plan.proposed)


def ranks(plan: Plan, sides: Sides) -> None:
    console = Console(highlight=False)
    console.print(_table(f"{len(plan.traffic)} ranks", plan.by, plan.traffic, sides))
    for host, machine in enumerate(plan.machines):
        members = [str(rank) for rank, at in enumerate(plan.proposed.hosts) if at == host]
        more = f", and {len(members) - _OF_HOST} more" if len(members) > _OF_HOST else ""
        console.print(f"{escape(machine)}: {'ranks ' + ', '.join(members[:_OF_HOST]) + more if members else 'none'}", soft_wrap=True)
    _paths(console, sides)


def machines(plan: machine_plans.Plan, book: machine_plans.Book, sides: Sides) -> None:
    console = Console(highlight=False)
    console.print(_table(f"{len(plan.world.machines)} machines", plan.by, plan.traffic, sides))
    _paths(console, sides)
    for move in plan.moves:
        console.print(escape(move.command(book)), soft_wrap=True)
    if plan.proposed == plan.world.present:
        console.print("nothing to move: as it is is the best that was found")


def _table(what: str, by: What, traffic: Any, sides: Sequence[Side]) -> Table:
    text, sent = bytes_text if by == "bytes" else count_text, int(traffic.sum()) or 1
    switched = any(side.between_switches is not None for side in sides)
    table = Table(title=f"{what}, {by} between hosts", title_justify="left")
    for name in ("", by, f"of all {by}", *(["between switches"] if switched else [])):
        table.add_column(name, justify="right" if name else "left")
    for side in sides:
        more = [] if side.between_switches is None else [text(side.between_switches)]
        table.add_row(side.name, text(side.between_hosts), percent(side.between_hosts / sent), *more)
    return table


def _paths(console: Console, sides: Sequence[Side]) -> None:
    for side in sides:
        share = percent(side.path.share)
        console.print(f"{side.name}, {share} of the messages are between hosts: {side.path.text}", soft_wrap=True)


def ranks_as_dict(plan: Plan, sides: Sides) -> dict[str, object]:
    present, proposed = (
        side.as_dict() | {"guests": layout.guests, "hosts": [plan.machines[host] for host in layout.hosts]}
        for side, layout in zip(sides, (plan.present, plan.proposed), strict=True)
    )
    return {"by": plan.by, "sent": int(plan.traffic.sum()), "origin": plan.origin, "present": present, "proposed": proposed}


def machines_as_dict(plan: machine_plans.Plan, book: machine_plans.Book, sides: Sides) -> dict[str, object]:
    world = plan.world
    present, proposed = (
        side.as_dict() | {"hosts": {name: world.hosts[host] for name, host in zip(world.machines, at, strict=True)}}
        for side, at in zip(sides, (world.present, plan.proposed), strict=True)
    )
    return {
        "by": plan.by,
        "sent": int(plan.traffic.sum()),
        "present": present,
        "proposed": proposed,
        "moves": [asdict(move) | {"command": move.command(book)} for move in plan.moves],
        "stuck": str(plan.stuck) if plan.stuck is not None else None,
    }
