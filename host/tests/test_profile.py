"""`ivc profile`: files of a made-up job in, figures, reports and one line per fault out."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from ivc_host.bench.floor import Floor
from ivc_host.profile import figures, gather, launch, measured, merge, model


def ivc(*words: str, cwd: Path | None = None, **settings: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("IVC_", "OMPI_"))}
    return subprocess.run(
        [sys.executable, "-m", "ivc_host", "profile", *words],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        cwd=cwd,
        env={**kept, "COLUMNS": "200", **settings},
        timeout=60,
    )


def one_line(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """It failed, and said so in one line that has these words."""
    assert done.returncode != 0
    assert re.fullmatch(r"ivc: [^\n]+\n", done.stderr), done.stderr
    for word in words:
        assert word in done.stderr, done.stderr


# ---- a made-up job: two hosts of two guests of one rank each, unless the test wants another


def name(rank: int) -> str:
    return f"{rank:016x}"


def traffic(by_class: dict[int, tuple[int, int]]) -> dict[str, Any]:
    return {
        "messages": {str(key): messages for key, (messages, _) in by_class.items()},
        "bytes": {str(key): size for key, (_, size) in by_class.items()},
    }


class Job:
    """RANKS on hosts of PER_HOST; rank i sends bytes(i, j) in messages(i, j), by memory within a host."""

    def __init__(self, folder: Path, ranks: int = 4, per_host: int = 2, job: str | None = "job-1") -> None:
        self.folder, self.ranks, self.per_host, self.job = folder, ranks, per_host, job
        folder.mkdir(parents=True, exist_ok=True)

    def host(self, rank: int) -> int:
        return rank // self.per_host

    def messages(self, one: int, other: int) -> int:
        return (one * 7 + other) % 5 + 1

    def bytes(self, one: int, other: int) -> int:
        return 1000 * self.messages(one, other)

    def path(self, one: int, other: int) -> str:
        return "memory" if self.host(one) == self.host(other) else "network"

    def peer(self, one: int, other: int, part: int = 1) -> dict[str, Any]:
        path = self.path(one, other)
        sent = {10: (self.messages(one, other) * part, self.bytes(one, other) * part)}
        got = {10: (self.messages(other, one) * part, self.bytes(other, one) * part)}
        return {
            "endpoint": name(other), "rank": None, "host": f"g{other}", "path": path,
            "why": None if path == "memory" else "other region",
            "sent": {path: traffic(sent)}, "received": {path: traffic(got)},
            "onesided": {"memory": {"operations": 0, "bytes": 0}, "network": {"operations": 0, "bytes": 0}},
        }  # fmt: skip

    def head(self, rank: int) -> dict[str, Any]:
        return {
            "ivc": "transport", "version": 1, "adapter": "provider", "host": f"g{rank}", "pid": 100 + rank,
            "rank": rank, "job": self.job, "endpoint": name(rank), "begin": 1000.0 + rank / 1000,
            "region": f"0f8fad5b-d9cb-469f-a165-{self.host(rank):012x}",
        }  # fmt: skip

    def lines(self, rank: int) -> list[dict[str, Any]]:
        others = [other for other in range(self.ranks) if other != rank]
        return [
            self.head(rank),
            {"t": 1.0, "peers": [self.peer(rank, other, 1) for other in others]},
            {"t": 2.0, "peers": [self.peer(rank, other, 2) for other in others]},
            {"t": 2.5, "end": True},
        ]

    def mpi_lines(self, rank: int) -> list[dict[str, Any]]:
        calls = {"MPI_Send": {"calls": 10, "seconds": 0.25, "bytes": 1000}, "MPI_Barrier": {"calls": 2, "seconds": 0.5, "bytes": 0}}
        return [
            {"ivc": "mpi", "version": 1, "host": f"g{rank}", "pid": 100 + rank, "rank": rank, "size": self.ranks,
             "mpi": "MPICH 4.3.2", "begin": 1000.0},
            {"t": 2.1, "time": 2.0, "in_mpi": 0.75, "calls": calls, "sent": {"0": {"messages": 1, "bytes": 8}}},
            {"t": 2.2, "end": True},
        ]  # fmt: skip

    def write(self, *, mpi: bool = True) -> Job:
        for rank in range(self.ranks):
            self.put(f"g{rank}.{100 + rank}.0.jsonl", self.lines(rank))
            if mpi:
                self.put(f"g{rank}.{100 + rank}.mpi.jsonl", self.mpi_lines(rank))
        return self

    def put(self, file: str, lines: list[dict[str, Any]]) -> Path:
        path = self.folder / file
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    def profile(self) -> model.Profile:
        return merge.merge(merge.read_folders([self.folder]))


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path / "files").write()


# ---- figures


def test_sent_is_received_to_the_byte(job: Job) -> None:
    profile = job.profile()
    assert profile.complete and profile.remarks == []
    assert len(profile.pairs) == 12
    for pair in profile.pairs:
        assert pair.bytes == 2 * job.bytes(pair.sender, pair.receiver)
        assert pair.messages == 2 * job.messages(pair.sender, pair.receiver)
        assert not pair.is_unequal()


def test_a_receiver_that_counts_otherwise_is_told(job: Job) -> None:
    lines = job.lines(1)
    lines[2]["peers"][0]["received"]["memory"]["bytes"]["10"] += 1
    job.put("g1.101.0.jsonl", lines)
    profile = job.profile()
    assert "1 pairs, such as 0 to 1" in profile.remarks[0]


def test_rates_and_shares(job: Job) -> None:
    profile = job.profile()
    pairs = [(i, j) for i in range(4) for j in range(4) if i != j]
    whole = sum(2 * job.bytes(i, j) for i, j in pairs)
    inside = sum(2 * job.bytes(i, j) for i, j in pairs if i // 2 == j // 2)
    assert figures.total(profile).bytes == whole
    assert figures.by_path(profile)["memory"].bytes == pytest.approx(inside / whole)
    assert figures.between(profile, figures.hosts(profile)).bytes == pytest.approx(1 - inside / whole)
    assert figures.between(profile, figures.guests(profile)).bytes == 1
    assert figures.rate(profile) == pytest.approx(whole / 4 / 2.0)  # each took 2 s from Init to Finalize
    assert figures.in_mpi(profile) == [0.375] * 4
    sent = [sum(2 * job.bytes(i, j) for j in range(4) if j != i) for i in range(4)]
    assert figures.sent_by_rank(profile) == sent
    assert figures.imbalance(profile) == pytest.approx(max(sent) / (whole / 4))


@pytest.mark.parametrize(("ranks", "percent"), [(16, 46.7), (32, 22.6), (64, 11.1)])
def test_the_line_of_chance_is_the_papers(tmp_path: Path, ranks: int, percent: float) -> None:
    profile = Job(tmp_path / "files", ranks, 8).write(mpi=False).profile()
    places = {rank: str(rank // 8) for rank in range(ranks)}
    assert round(100 * figures.chance(profile, places), 1) == percent


def test_reasons_and_gain(job: Job) -> None:
    profile = job.profile()
    (reason,) = figures.reasons(profile)
    assert (reason.path, reason.why, reason.pairs, reason.together) == ("network", "other region", 8, 0)
    assert figures.gain(profile, None).seconds is None
    gain = figures.gain(profile, {9: 1e-3, 20: 5.0})  # the nearest class that was measured
    assert gain.messages == reason.volume.messages
    assert gain.seconds == pytest.approx(gain.messages * 1e-3 / 4)


def test_measured_latencies_become_savings(tmp_path: Path) -> None:
    floor = Floor(*[1.0] * len(fields(Floor))).as_dict()
    samples = [
        {"side": side, "round": 0, "state": "", "floor_before": floor, "floor_after": floor,
         "records": [{"test": "latency", "bytes": size, "typical_us": us} for size in (8, 1024)]}
        for side, us in (("tcp", 100.0), ("ivc", 1.0))
    ]  # fmt: skip
    file = tmp_path / "run.json"
    file.write_text(json.dumps({"schema": "ivc-bench-1", "samples": samples}))
    assert measured.savings(file) == {3: pytest.approx(99e-6), 10: pytest.approx(99e-6)}


def test_what_the_mpi_carries_itself(job: Job) -> None:
    """Ranks 0 and 1 share a guest, and the MPI's own shared memory carries what the program sends."""
    for rank, other in ((0, 1), (1, 0)):
        lines = job.lines(rank)
        for line in lines[1:3]:
            line["peers"] = [peer for peer in line["peers"] if peer["endpoint"] != name(other)]
        job.put(f"g{rank}.{100 + rank}.0.jsonl", lines)
    lines = job.mpi_lines(0)
    lines[1]["sent"] = {"0": {"messages": 1, "bytes": 1}, "1": {"messages": 3, "bytes": 300}, "2": {"messages": 9, "bytes": 9},
                        "other": {"messages": 1, "bytes": 1}, "9" * 5000: {"messages": 1, "bytes": 1}}  # fmt: skip
    job.put("g0.100.mpi.jsonl", lines)
    found = {(pair.sender, pair.receiver): pair for pair in job.profile().pairs}
    assert found[0, 1].by("mpi") == model.Volume(messages=3, bytes=300) and found[0, 1].path == "mpi"
    assert found[0, 2].by("mpi") == model.Volume()  # ivc carried it, and has counted it


def test_onesided_operations_are_bytes_but_no_messages_of_the_receiver(job: Job) -> None:
    lines = job.lines(0)
    lines[2]["peers"][0]["onesided"]["memory"] = {"operations": 3, "bytes": 4096}
    job.put("g0.100.0.jsonl", lines)
    profile = job.profile()
    pair = next(pair for pair in profile.pairs if (pair.sender, pair.receiver) == (0, 1))
    assert pair.bytes == 2 * job.bytes(0, 1) + 4096 and not pair.is_unequal() and profile.remarks == []


def test_ranks_come_from_the_mpi_layer_where_nothing_else_tells(job: Job) -> None:
    for rank in range(4):
        lines = job.lines(rank)
        lines[0]["rank"] = None
        job.put(f"g{rank}.{100 + rank}.0.jsonl", lines)
    assert [(one.rank, one.host) for one in job.profile().processes] == [(r, f"g{r}") for r in range(4)]


def test_programs_without_ranks_are_numbered(tmp_path: Path) -> None:
    job = Job(tmp_path / "files").write(mpi=False)
    for rank in range(4):
        lines = job.lines(rank)
        lines[0] |= {"rank": None, "adapter": "libivc", "job": None}
        job.put(f"g{rank}.{100 + rank}.0.jsonl", lines)
    assert [(one.rank, one.host) for one in job.profile().processes] == [(r, f"g{r}") for r in range(4)]


def test_the_time_line_shows_a_move(tmp_path: Path) -> None:
    """By memory for the first second, by network for the next: each byte lies where it was sent."""
    job = Job(tmp_path / "files", 2)
    for rank in range(2):
        before, after = job.peer(rank, 1 - rank), job.peer(rank, 1 - rank)
        after["sent"]["network"] = traffic({10: (2, 2000)})
        job.put(f"g{rank}.{rank}.0.jsonl", [job.head(rank), {"t": 1.0, "peers": [before]},
                                            {"t": 2.0, "peers": [after]}, {"t": 2.0, "end": True}])  # fmt: skip
    steps = job.profile().steps
    assert sum(step.memory for step in steps) == job.bytes(0, 1) + job.bytes(1, 0)
    assert sum(step.network for step in steps) == 4000
    assert all(step.network == 0 for step in steps if step.end < 1.4)
    assert all(step.memory == 0 for step in steps if step.begin > 1.1)


def test_hosts_that_share_a_disk_count_once(job: Job, tmp_path: Path) -> None:
    Job(tmp_path / "same").write()
    both = merge.merge(merge.read_folders([job.folder, tmp_path / "same"]))
    assert both.pairs == job.profile().pairs


# ---- what is not as it should be


def test_a_killed_rank_keeps_what_it_had_counted(job: Job) -> None:
    job.put("g1.101.0.jsonl", job.lines(1)[:2])  # one sample of two, and no end
    profile = job.profile()
    assert not profile.complete and "rank 1 ended before MPI_Finalize" in profile.remarks[0]
    found = {(pair.sender, pair.receiver): pair for pair in profile.pairs}
    assert found[0, 1].bytes == 2 * job.bytes(0, 1)
    assert found[1, 0].bytes == 2 * job.bytes(1, 0)  # the receiver has all of it
    (job.folder / "g1.101.0.jsonl").unlink()
    (job.folder / "g1.101.mpi.jsonl").unlink()
    profile = job.profile()
    assert "rank 1 left no file" in profile.remarks[0] and not profile.complete


def test_peers_that_left_no_file_are_ranks_all_the_same(job: Job, tmp_path: Path) -> None:
    """The plug-in knows the rank of a peer, of which there may be no file."""
    for path in [*job.folder.glob("*.mpi.jsonl"), job.folder / "g3.103.0.jsonl"]:
        path.unlink()
    for rank in range(3):
        lines = job.lines(rank)
        for line in lines[1:3]:
            line["peers"][-1]["rank"] = 3
        job.put(f"g{rank}.{100 + rank}.0.jsonl", lines)
    written(job, tmp_path / "a.json")
    profile = model.load(tmp_path / "a.json")
    assert profile.size == 4 and not profile.complete and "rank 3 left no file" in profile.remarks[0]
    assert figures.sent_by_rank(profile)[3] == sum(2 * job.bytes(3, other) for other in range(3))


def test_a_line_that_is_cut_off_is_left_out(job: Job) -> None:
    path = job.folder / "g1.101.0.jsonl"
    text = path.read_text()
    path.write_text(text[: text.rindex('{"t": 2.0') + 40])
    profile = job.profile()
    assert not profile.complete
    assert any("g1.101.0.jsonl: its last line is cut off" in remark for remark in profile.remarks)
    path.write_text(text[:10])
    assert any("cut off before it said anything" in remark for remark in job.profile().remarks)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 2}, ["version 2", "reads version 1"]),
        ({"ivc": "something"}, ["no file of IVC_STATS"]),
        ({"begin": "now"}, ["line 1", "begin"]),
        ({"begin": 1e300}, ["line 1", "begin"]),
        ({"rank": -3}, ["line 1", "rank"]),
        ({"rank": 1 << 30}, ["line 1", "rank"]),
    ],
)
def test_heads_that_cannot_be_meant(job: Job, change: dict[str, Any], words: list[str]) -> None:
    lines = job.lines(2)
    lines[0] |= change
    job.put("g2.102.0.jsonl", lines)
    one_line(ivc("merge", str(job.folder), cwd=job.folder), "g2.102.0.jsonl", *words)


@pytest.mark.parametrize("line", ["nonsense", "[1]", '{"t": 1, "peers": [{"endpoint": 3}]}', '{"t": -1, "peers": []}', "[" * 9999])
def test_lines_that_cannot_be_meant(job: Job, line: str) -> None:
    path = job.folder / "g2.102.0.jsonl"
    first, *rest = path.read_text().splitlines()
    path.write_text("\n".join([first, line, *rest]) + "\n")
    one_line(ivc("merge", str(job.folder), cwd=job.folder), "g2.102.0.jsonl, line 2")


def test_files_of_two_jobs(job: Job, tmp_path: Path) -> None:
    other = Job(job.folder, 2, job="job-2")
    other.put("g0.7.0.jsonl", [other.head(0) | {"pid": 7, "endpoint": name(70)}, {"t": 1, "end": True}])
    one_line(ivc("merge", str(job.folder), cwd=tmp_path), "2 jobs", "job-1", "job-2", "--job")
    one_line(ivc("merge", str(job.folder), "--job", "job-3", cwd=tmp_path), "no file is of job job-3")
    done = ivc("merge", str(job.folder), "--job", "job-1", "--output", "one.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert model.load(tmp_path / "one.json").pairs == Job(tmp_path / "again").write().profile().pairs


def test_two_jobs_that_have_no_name(tmp_path: Path) -> None:
    job = Job(tmp_path / "files", 2, job=None).write(mpi=False)
    job.put("g0.7.0.jsonl", [job.head(0) | {"pid": 7, "endpoint": name(70)}, {"t": 1, "end": True}])
    one_line(ivc("merge", str(job.folder), cwd=tmp_path), "two jobs", "rank 0")


def test_an_empty_folder_and_none(tmp_path: Path) -> None:
    one_line(ivc("merge", str(tmp_path), cwd=tmp_path), "no file of a job", "ivc env")
    one_line(ivc("merge", str(tmp_path / "none"), cwd=tmp_path), "there is no folder")


def test_another_host_writes_nothing_outside(tmp_path: Path) -> None:
    source = tmp_path / "source"
    Job(source / "in", 2).write()
    (source / "in" / "g0.1.0.txt").write_text("x")
    archive = subprocess.run(
        ["tar", "-C", str(source / "in"), "-cf", "-", "-P", "--transform", "s,^./g1,../g1,", "."], capture_output=True, check=True
    ).stdout
    (tmp_path / "into").mkdir()
    gather._unpack(archive, tmp_path / "into")
    assert {path.name for path in tmp_path.rglob("*") if path.is_file() and source not in path.parents} == {
        "g0.100.0.jsonl", "g0.100.mpi.jsonl",
    }  # fmt: skip


# ---- profiles that were written


def written(job: Job, file: Path, *words: str) -> subprocess.CompletedProcess[str]:
    done = ivc("merge", str(job.folder), "--output", str(file), *words)
    assert done.returncode == 0, done.stderr
    return done


def test_show_is_what_merge_has_shown(job: Job, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    first = written(job, file)
    done = ivc("show", str(file))
    assert done.stdout == first.stdout and done.stderr == ""
    for words in ("4 ranks in 4 guests, MPICH 4.3.2", "communication rate", "by chance 33.3 %", "other region", "37.5 % (mean)"):
        assert words in done.stdout, done.stdout
    assert json.loads(file.read_text())["complete"] is True


def test_matrix(job: Job, tmp_path: Path) -> None:
    written(job, tmp_path / "a.json", "--csv", str(tmp_path / "m.csv"))
    for file, measure in (("m.csv", job.bytes), ("m-messages.csv", job.messages)):
        rows = [line.split(",") for line in (tmp_path / file).read_text().splitlines()]
        assert rows[0] == ["sender", "0", "1", "2", "3"]
        for i in range(4):
            assert rows[i + 1] == [str(i)] + [str(0 if i == j else 2 * measure(i, j)) for j in range(4)]


@pytest.mark.parametrize("ranks", [1, 2, 4, 64])
def test_report_needs_nothing_else(tmp_path: Path, ranks: int) -> None:
    job = Job(tmp_path / "files", ranks, 8).write()
    written(job, tmp_path / "a.json", "--html", str(tmp_path / "a.html"))
    text = (tmp_path / "a.html").read_text()
    assert text.count("<svg") == (6 if ranks > 1 else 1)
    assert not re.search(r"""(src|href)=["'](?!#|data:)""", text) and "@import" not in text
    for word in ("Who sends to whom", "Message sizes", "Time line", "Calls of MPI") if ranks > 1 else ("Calls of MPI",):
        assert word in text


def test_words_of_others_are_no_markup(job: Job, tmp_path: Path) -> None:
    lines = job.lines(0)
    for line in lines[1:3]:
        line["peers"][1]["why"] = "<script>[red]"
    job.put("g0.100.0.jsonl", lines)
    done = written(job, tmp_path / "a.json", "--html", str(tmp_path / "a.html"))
    assert "<script>[red]" in done.stdout
    assert "<script>" not in (tmp_path / "a.html").read_text()


def test_diff(job: Job, tmp_path: Path) -> None:
    written(job, tmp_path / "a.json")
    assert "as much as before" in ivc("diff", str(tmp_path / "a.json"), str(tmp_path / "a.json")).stdout
    together = Job(tmp_path / "together", per_host=4).write()
    written(together, tmp_path / "b.json")
    done = ivc("diff", str(tmp_path / "a.json"), str(tmp_path / "b.json"))
    assert done.returncode == 0, done.stderr
    assert "8 pairs changed" in done.stdout and "100.0 %" in done.stdout and "points" in done.stdout
    written(Job(tmp_path / "more", 6).write(), tmp_path / "c.json")
    one_line(ivc("diff", str(tmp_path / "a.json"), str(tmp_path / "c.json")), "4 ranks", "of 6")


@pytest.mark.parametrize("command", ["show", "diff"])
def test_files_that_are_no_profiles(job: Job, tmp_path: Path, command: str) -> None:
    good = tmp_path / "good.json"
    written(job, good)
    data = json.loads(good.read_text())
    cases = {
        "cut off": good.read_text()[:500],
        "no profile": "{}",
        "version 7": json.dumps(data | {"version": 7}),
        "size": json.dumps(data | {"size": 0}),
        "do not fit": json.dumps(data | {"size": 2}),
    }
    for words, text in cases.items():
        bad = tmp_path / "bad.json"
        bad.write_text(text)
        one_line(ivc(command, str(bad), *([str(good)] if command == "diff" else [])), str(bad), words)
    one_line(ivc(command, "/none", *([str(good)] if command == "diff" else [])), "cannot read /none")


# ---- commands that are run


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def launcher(folder: Path, said: str, files: Path | None = None, then: str = "exit 0") -> str:
    """An mpiexec that says which MPI it is, notes what it was given, and leaves the files of a job."""
    copy = f'cp {files}/*.jsonl "${{IVC_STATS#json:}}"' if files else ":"
    told = '[ "$1" = -genv ] && [ "$2" = IVC_STATS ] && IVC_STATS=$3'
    carried = 'eval "$(echo "$OMPI_MCA_mca_base_env_list$OMPI_MCA_mca_base_env_list_internal" | tr ";" "\\n" | grep IVC_STATS=)"'
    text = f'[ "$1" = --version ] && {{ echo "{said}"; exit; }}\necho ran; echo "$@" >{folder}/args\nenv >{folder}/env\n'
    return script(folder / "mpiexec", f"{text}{told}\n[ -n \"$IVC_STATS\" ] || {carried}\n{copy}\n{then}")


_HYDRA = "HYDRA build details:"


def no_folders() -> set[Path]:
    return set(Path("/tmp").glob("ivc-profile-*"))


def test_hydra_tells_its_ranks(job: Job, tmp_path: Path) -> None:
    before = no_folders()
    command = launcher(tmp_path, _HYDRA, job.folder, "exit 7")
    done = ivc("--output", "o.json", "--html", "o.html", "--", command, "-n", "4", "prog", cwd=tmp_path, IVC_BUILD=str(tmp_path))
    assert done.returncode == 7 and done.stdout == "ran\n", done.stderr
    assert re.fullmatch(r"-genv IVC_STATS json:\S+ -n 4 prog\n", (tmp_path / "args").read_text())
    assert "calls of MPI are not counted" in done.stderr  # nothing is built in that folder
    profile = model.load(tmp_path / "o.json")
    assert (profile.exit_status, profile.command) == (7, [command, "-n", "4", "prog"])
    assert profile.pairs == job.profile().pairs and (tmp_path / "o.html").exists()
    assert no_folders() == before


@pytest.mark.parametrize(("version", "variable"), [("4.1.4", "mca_base_env_list_internal"), ("5.0.11", "mca_base_env_list")])
def test_openmpi_tells_its_ranks(job: Job, tmp_path: Path, version: str, variable: str) -> None:
    layer = tmp_path / "build" / "adapters" / "mpi" / "libivc-profile.so"
    layer.parent.mkdir(parents=True)
    layer.touch()
    command = launcher(tmp_path, f"mpirun (Open MPI) {version}", job.folder)
    done = ivc(command, "-np", "4", "prog", cwd=tmp_path, IVC_BUILD=str(tmp_path / "build"), LD_PRELOAD="")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "args").read_text() == "-np 4 prog\n"
    settings = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines() if "=" in line)
    entries = settings[f"OMPI_MCA_{variable}"].split(";")
    assert f"LD_PRELOAD={layer}" in entries and any(entry.startswith("IVC_STATS=json:/") for entry in entries)
    assert str(layer) not in settings.get("LD_PRELOAD", "")  # mpirun itself is left alone
    assert (tmp_path / "ivc-profile.json").exists()


def test_a_command_that_is_no_launcher(job: Job, tmp_path: Path) -> None:
    """It has the settings in its environment: what it starts may pass them on."""
    command = script(tmp_path / "mine", f'cp {job.folder}/*.jsonl "${{IVC_STATS#json:}}"')
    done = ivc("--", command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert model.load(tmp_path / "ivc-profile.json").pairs == job.profile().pairs


def test_a_command_that_is_not_found(tmp_path: Path) -> None:
    before = no_folders()
    one_line(ivc("--", "no-such-mpiexec", "-n", "4", cwd=tmp_path), "no-such-mpiexec: no such program")
    assert no_folders() == before


def test_a_job_that_leaves_no_file(tmp_path: Path) -> None:
    before = no_folders()
    done = ivc("--", launcher(tmp_path, _HYDRA), cwd=tmp_path)
    assert done.returncode == 1 and "the job left no file" in done.stderr and "ivc env" in done.stderr
    done = ivc("--", launcher(tmp_path, _HYDRA, then="kill -9 $$"), cwd=tmp_path)
    assert done.returncode == 137 and "the job left no file" in done.stderr
    assert no_folders() == before


def test_a_job_that_never_used_ivc(job: Job, tmp_path: Path) -> None:
    for path in job.folder.glob("*.0.jsonl"):
        path.unlink()
    done = ivc("--", launcher(tmp_path, _HYDRA, job.folder), cwd=tmp_path)
    assert done.returncode == 0 and "no message went through ivc" in done.stderr
    assert model.load(tmp_path / "ivc-profile.json").processes[0].in_mpi == 0.75


def test_files_that_cannot_be_merged_are_kept(job: Job, tmp_path: Path) -> None:
    job.put("g0.100.0.jsonl", [{"ivc": "transport", "version": 9}])
    done = ivc("--", launcher(tmp_path, _HYDRA, job.folder), cwd=tmp_path)
    found = re.search(r"kept in (\S+),", done.stderr)
    assert done.returncode == 1 and found and list(Path(found[1]).rglob("*.jsonl"))
    subprocess.run(["rm", "-r", found[1]], check=True)


def test_an_output_that_cannot_be_written_is_told_before(job: Job, tmp_path: Path) -> None:
    done = ivc("--output", "/none/o.json", "--", launcher(tmp_path, _HYDRA, job.folder), cwd=tmp_path)
    one_line(done, "/none")
    assert not (tmp_path / "args").exists()


def test_other_hosts_are_asked_by_ssh(job: Job, tmp_path: Path) -> None:
    """An ssh that runs the line here, where the "host" has a folder of its own."""
    (tmp_path / "bin").mkdir()
    files = job.folder
    script(
        tmp_path / "bin" / "ssh",
        'while [ "$1" != -- ]; do host=$1; shift; done\n[ "$host" = down ] && { echo "no route" >&2; exit 255; }\n'
        f'case $2 in tar*) exec tar -C {files} -cf - .;; *) echo "$host: $2" >>{tmp_path}/asked;; esac',
    )
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    command = launcher(tmp_path, _HYDRA)
    done = ivc("--gather", "n1", "--gather", "n2", "--", command, cwd=tmp_path, PATH=path)
    assert done.returncode == 0, done.stderr
    assert model.load(tmp_path / "ivc-profile.json").pairs == job.profile().pairs
    assert [line.split()[:2] for line in (tmp_path / "asked").read_text().splitlines()] == [
        ["n1:", "mkdir"], ["n2:", "mkdir"], ["n1:", "rm"], ["n2:", "rm"],
    ]  # fmt: skip
    (tmp_path / "args").unlink()
    one_line(ivc("--gather", "down", "--", command, cwd=tmp_path, PATH=path), "down is not reached", "no route")
    assert not (tmp_path / "args").exists()


def test_hosts_whose_files_are_lost_are_a_remark(job: Job, tmp_path: Path) -> None:
    class Gone:
        name = "n3"

        def command(self, line: str) -> list[str]:
            return ["sh", "-c", "echo gone >&2; exit 1"]

    (fault,) = gather.fetch([Gone()], Path("/x"), tmp_path)
    assert "n3" in fault and "gone" in fault


class Shells:
    """A lab whose guests are shells here, each in a folder of its own."""

    guests = ["g1", "g2"]

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ran: list[tuple[str, list[str], dict[str, str]]] = []

    def ssh_argv(self, guest: str, remote: str) -> list[str]:
        return ["sh", "-c", remote.replace("/job", f"/job-{guest}")]

    def run(self, guest: str, argv: list[str], env: dict[str, str], *_: Any, **__: Any) -> subprocess.CompletedProcess[str]:
        self.ran.append((guest, list(argv), dict(env)))
        return subprocess.CompletedProcess(argv, 5, "HYDRA build details:", "")


def test_a_lab_runs_it_in_its_first_guest(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FI_PROVIDER", "ivc")
    monkeypatch.setenv("SECRET", "no")
    lab = Shells(tmp_path)
    place, sources = launch.InLab(lab), [gather.Guest(lab, name) for name in lab.guests]  # type: ignore[arg-type]
    command = ["mpiexec", "-n", "4", "prog"]
    mpi = launch.recognise(command, place)
    words, own = launch.told(command, mpi, {"IVC_STATS": "json:/x"}, place)
    assert place.run(words, own) == 5
    guest, argv, env = lab.ran[-1]
    assert (guest, argv) == ("g1", ["mpiexec", "-genv", "IVC_STATS", "json:/x", "-n", "4", "prog"])
    assert env["FI_PROVIDER"] == "ivc" and "PATH" in env and "SECRET" not in env
    gather.prepare(sources, tmp_path / "base" / "job")
    for rank, path in enumerate(sorted(job.folder.iterdir())):
        (tmp_path / "base" / f"job-g{rank % 2 + 1}" / path.name).write_bytes(path.read_bytes())
    (tmp_path / "here").mkdir()
    assert gather.fetch(sources, tmp_path / "base" / "job", tmp_path / "here") == []
    assert merge.merge(merge.read_folders([tmp_path / "here"])).pairs == job.profile().pairs
    assert not list((tmp_path / "base").glob("*"))


def test_this_host_may_be_named_as_well(job: Job, tmp_path: Path) -> None:
    """Its files are fetched and removed like those of another one, and none is lost."""
    before = no_folders()
    (tmp_path / "bin").mkdir()
    script(tmp_path / "bin" / "ssh", 'while [ "$1" != -- ]; do shift; done\nexec sh -c "$2"')
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    done = ivc("--gather", "localhost", "--", launcher(tmp_path, _HYDRA, job.folder), cwd=tmp_path, PATH=path)
    assert done.returncode == 0, done.stderr
    assert model.load(tmp_path / "ivc-profile.json").pairs == job.profile().pairs
    assert no_folders() == before


def test_a_profile_that_is_asked_to_end_keeps_what_was_counted(job: Job, tmp_path: Path) -> None:
    command = launcher(tmp_path, _HYDRA, job.folder, f"touch {tmp_path}/begun; exec sleep 60")
    with subprocess.Popen(
        [sys.executable, "-m", "ivc_host", "profile", "--", command], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    ) as child:
        end = time.monotonic() + 30
        while not (tmp_path / "begun").exists() and time.monotonic() < end:
            time.sleep(0.05)
        child.terminate()
        said = child.communicate(timeout=30)[1]
    assert child.returncode == 143, said
    profile = model.load(tmp_path / "ivc-profile.json")
    assert profile.exit_status == 143 and profile.pairs == job.profile().pairs
