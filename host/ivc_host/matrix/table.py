"""The matrix for people: a table on the terminal, the same as Markdown, and the reasons below."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Table

from . import known
from .mpis import MPIS
from .places import PLACES
from .plan import Task
from .results import EACH, FAIL, NOT_RUN, PASS, Cell, Outcome, anywhere, job_text

_HEADS = ("MPI", "place", "integrity", "8 B", "64 KiB", "1 MiB", "mpi4py, 2 ranks",
          "mpi4py, 4 ranks", "MPICH's tests")  # fmt: skip
_LABELS = {mpi.key: mpi.label for mpi in MPIS} | {"openmpi-4.1": "Open MPI 4.1"}


def _us(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value / 1000:.2f} ms" if value >= 1000 else f"{value:.3g} us"


def _suite(outcome: Outcome | None, way: str) -> str:
    if outcome is None:
        return ""
    if outcome.status == NOT_RUN or not outcome.tests:
        return outcome.status
    count = f"{outcome.tests} run, {len(outcome.failures)} failed"
    return f"{outcome.status}: {count}" if way == "ivc" else count  # nobody judges the others


def _integrity(cell: Cell) -> str:
    found = [o for o in cell.outcomes if o.program == "integrity"]
    if len({o.status for o in found}) <= 1:
        ranks = ", ".join(str(o.ranks) for o in found)
        return f"{found[0].status} ({ranks} ranks)" if found else ""
    return ", ".join(f"{o.ranks} ranks: {o.status}" for o in found)


def row(cell: Cell) -> list[str]:
    """One cell in words."""
    swept = next((o for o in cell.outcomes if o.program == "latency"), None)
    sizes = ("8", "65536", "1048576")
    latency = [_us(swept.latency_us.get(size)) if swept else "" for size in sizes]
    if swept and swept.status != PASS:
        latency[0] = swept.status
    where = cell.place if cell.way == "ivc" else f"{cell.place}, without us"
    label = f"{_LABELS.get(cell.mpi, cell.mpi)} ({cell.version})"
    suites = [_suite(cell.find("suite", ranks), cell.way) for ranks in (2, 4)]
    mpich = _suite(cell.find("mpich-suite", EACH), cell.way)
    return [label, where, _integrity(cell), *latency, *suites, mpich]


def _order(cells: Iterable[Cell]) -> list[Cell]:
    baselines = [mpi.baseline for mpi in MPIS]
    by_key = {mpi.key: index for index, mpi in enumerate(MPIS)}
    where = [place.key for place in PLACES]

    def rank(cell: Cell) -> tuple[int, int, int]:
        own = cell.way != "ivc"
        last = len(baselines) - 1 - baselines[::-1].index(cell.mpi) if own else by_key[cell.mpi]
        return last, int(own), where.index(cell.place)

    return sorted(cells, key=rank)


def _grouped(failures: Mapping[str, str]) -> list[str]:
    """A line for each class of tests that failed for one reason."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name in sorted(failures):
        # mpi4py's names are module.class.test, MPICH's folder/program and its words.
        parent, dot, test = name.partition("/") if "/" in name else name.rpartition(".")
        groups.setdefault((parent + dot, failures[name]), []).append(test)
    return [
        f"{parent}{tests[0] if len(tests) == 1 else f'* ({len(tests)} tests)'}: {why[:160]}"
        for (parent, why), tests in groups.items()
    ]


def _reasons(cell: Cell, own: Cell | None) -> list[str]:
    what = f"{_LABELS.get(cell.mpi, cell.mpi)}, {cell.place}"
    what += "" if cell.way == "ivc" else ", without us"
    lines = []
    for outcome in cell.outcomes:
        head = f"{what}: {job_text(outcome.program, outcome.ranks)}"
        if outcome.text:
            lines.append(f"{head}: {outcome.status}: {outcome.text}")
        bad = known.unexplained(cell.mpi, outcome.failures)
        without = own.find(outcome.program, outcome.ranks) if own and outcome.failures else None
        same = bad & set(without.failures if without else ())
        if same:
            lines.append(f"{head}: {len(same)} tests that fail without us as well, see there")
        failures = {name: outcome.failures[name] for name in bad - same}
        lines += [f"{head}: {line}" for line in _grouped(failures)]
        lines += [f"{head}: not held to: {line}" for line in _grouped(outcome.excused)]
    return lines


def reasons(cells: Iterable[Cell]) -> list[str]:
    """What did not pass, and why; and which tests of the suite failed."""
    cells = _order(cells)
    own = {cell.mpi: cell for cell in cells if cell.way != "ivc"}
    baseline = {mpi.key: own.get(mpi.baseline) for mpi in MPIS}
    lines = []
    for cell in cells:
        lines += _reasons(cell, baseline.get(cell.mpi) if cell.way == "ivc" else None)
    return lines


def show(cells: Sequence[Cell], console: Console) -> None:
    table = Table(*_HEADS, title="Matrix")
    for cell in _order(cells):
        words = row(cell)
        style = "red" if any(FAIL in word for word in words) and cell.way == "ivc" else None
        table.add_row(*words, style=style)
    console.print(table)
    for line in reasons(cells):
        console.print(line, markup=False, highlight=False)


_PAGE = """# Matrix

Every MPI in every place, real programs between user-mode Linux guests. Made by

    {command}

which adds what has no result yet and can be stopped and given again; the results themselves are in
the file of `--json`. Made {when} on {machine}.

- *place*: {places}.
  A "host" is a region of shared memory; guests of two hosts have only a network between them. Four
  ranks on two guests are two in each. A guest has one processor, and everything in it is scheduled
  round robin (performance.md, "More ranks than processors"). So are the ranks *here*, where
  `give_way.so` (`tests/mpi/give_way.c`) makes those that wait give their processor away.
- *here, without us*: the same MPI over libfabric's `tcp` (`mtl/ofi`: `tcp;ofi_rxm`, `btl/ofi`:
  `sockets`); over Open MPI's own TCP beside the plug-in. Its ranks are processes of this machine,
  and the MPI is told that they are on two hosts (`as-host.sh` stands for ssh and gives each its
  name): it treats them as it treats guests. Only the two test suites are run so, to see which tests
  fail without us.
- *here*: the same through ivc: both "hosts" have one region, and no rank uses the MPI's own shared
  memory.
- *integrity*: `tests/mpi/integrity.c`, every byte compared; and the adapter's own counters say that
  pairs of guests on one host used memory and nothing else, and pairs on two hosts did not; with the
  provider, that they used its network path.
- *8 B, 64 KiB, 1 MiB*: median one-way latency (`bench/bench_mpi.c`).
- *mpi4py*: mpi4py's own test suite. *pass*: nothing failed but what fails without us as well: in
  the row *without us*, or in the first list here.
- *MPICH's tests*: `test/mpi` of MPICH 4.0.2 (Debian's source), C only, built with the MPI's `mpicc`,
  each program on as many ranks as its list says; *pass* as for mpi4py. What the suite itself expects
  to fail, what does not build with this MPI, and what takes more than 2 GB of memory is listed below
  as *not held to*. With Open MPI the suite is configured for what the standard has (`--enable-strictmpi`).

Tests of the suites that fail, and not because of us:

{failing}

Tests of mpi4py that are not run:

{left_out}

"""


def _known(what: Iterable[known.Known]) -> str:
    """A line for each reason."""
    by_why: dict[tuple[str, str], list[str]] = {}
    for one in what:
        by_why.setdefault((one.mpi, one.why), []).append(f"`{one.pattern}`")
    return "\n".join(
        f"- {', '.join(patterns)}" + (f" ({mpi})" if mpi else "") + f": {why}."
        for (mpi, why), patterns in by_why.items()
    )


def _missing(cells: Iterable[Cell], tasks: Iterable[Task]) -> list[str]:
    """What a whole matrix has and this one has no result of, a line for each cell."""
    have = {(cell.key, o.program, o.ranks) for cell in cells for o in cell.outcomes}
    by_cell: dict[str, list[str]] = {}
    for task in tasks:
        if (task.key, task.program, task.ranks) not in have:
            where = f"{_LABELS.get(task.name, task.name)}, {task.place.key}"
            where += "" if task.way == "ivc" else ", without us"
            ranks = "" if task.ranks == EACH else f" on {task.ranks} ranks"
            by_cell.setdefault(where, []).append(f"{task.program}{ranks}")
    return [f"{where}: {', '.join(jobs)}" for where, jobs in by_cell.items()]


def _when(cells: Iterable[Cell]) -> str:
    """The days on which the results were made, each with the versions of ours."""
    trees: dict[str, dict[str, None]] = {}
    made = [o for cell in cells for o in cell.outcomes if o.day]
    for outcome in sorted(made, key=lambda o: o.day):
        trees.setdefault(outcome.day, {})[outcome.tree] = None
    return "; ".join(f"{day} (ivc {', '.join(filter(None, trees[day]))})" for day in trees)


def markdown(cells: Sequence[Cell], whole: Iterable[Task], command: str, machine: str) -> str:
    """The page docs/matrix.md; `whole` is everything that a matrix can have."""
    text = _PAGE.format(
        command=command,
        when=_when(cells),
        machine=machine,
        places="; ".join(f"*{place.key}*: {place.label}" for place in PLACES),
        failing=_known(known.FAILING),
        left_out=_known(known.LEFT_OUT),
    )
    text += f"| {' | '.join(_HEADS)} |\n|{'---|' * len(_HEADS)}\n"
    for cell in _order(cells):
        text += f"| {' | '.join(row(cell))} |\n"
    if found := reasons(cells):
        text += "\n## What did not pass, and why\n\n"
        text += "".join(f"- {line.replace('|', '/')}\n" for line in found)
    if missing := _missing(cells, whole):
        text += "\n## What was not run in this matrix\n\n"
        text += "".join(f"- {line}\n" for line in missing)
    return anywhere(text)
