"""Parts about Open MPI: the MPI programs of tests/mpi through the plug-in, on this host."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from .. import openmpi, paths
from ..errors import MissingError
from . import profile
from .part import Run, SkipPart
from .placed import placed
from .profiled import profiled

_STATS = re.compile(
    r"^ivc: rank (\d+) on host (\S+), peer (\d+) on host (\S+): memory: "
    r"sent (\d+) packets (\d+) bytes, received (\d+) packets (\d+) bytes",
    re.M,
)

#: The same of any adapter: bytes sent to a peer by memory, and by network.
SENT = re.compile(r"^ivc: .*: memory: sent \d+ packets (\d+) bytes.*; network: sent (\d+) bytes", re.M)

#: What a user may write, and what it becomes in the environment.
SELECTIONS = {
    "btl ivc,self": {"OMPI_MCA_btl": "ivc,self"},
    "btl ivc,tcp,self": {"OMPI_MCA_btl": "ivc,tcp,self"},
    "no option": {},
}


#: Debian's default is "^ucx,pt2pt"; without pt2pt nothing serves one-sided operations between
#: guests, over whatever path (Open MPI then answers MPI_ERR_WIN).
ONE_SIDED = {"OMPI_MCA_osc": "^ucx"}


#: Open MPI's two ways to libfabric.
OVER_LIBFABRIC = {
    "mtl/ofi": {
        "OMPI_MCA_pml": "cm",
        "OMPI_MCA_mtl": "ofi",
        "OMPI_MCA_mtl_ofi_provider_include": "ivc",
    },
    "btl/ofi": {
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "ofi,self",
        "OMPI_MCA_btl_ofi_mode": "2",
        **ONE_SIDED,
    },
}


def program(name: str) -> str:
    return str(paths.build() / "tests" / "mpi" / name)


def _provider_file() -> Path:
    return paths.provider() / "libivc-fi.so"


def components() -> str:
    """Open MPI's search path for plug-ins: the build's, then its own."""
    done = subprocess.run(openmpi.ASK_FOLDER, capture_output=True, text=True)
    try:
        return openmpi.component_path(done.stdout)
    except MissingError as error:
        raise SkipPart(error.message) from error


def require() -> None:
    if shutil.which("mpirun") is None or shutil.which("ompi_info") is None:
        raise SkipPart("mpirun is not installed (package openmpi-bin)")
    if not (paths.plugin() / "mca_btl_ivc.so").exists():
        raise SkipPart("mca_btl_ivc.so is not built (package libopenmpi-dev, then ./run build)")


def environment(region: str) -> dict[str, str]:
    return {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_mca_base_component_path": components(),
        "IVC_REGION": region,
        "IVC_STATS": "1",
    }


def pairs_by_memory(said: str) -> dict[tuple[int, int], int]:
    """Bytes that each rank has sent to each other through memory, as the plug-in tells it."""
    return {(int(m[1]), int(m[3])): int(m[6]) for m in _STATS.finditer(said)}


def all_pairs(said: str, ranks: int) -> bool:
    """Whether every rank has sent to every other one through memory."""
    sent = pairs_by_memory(said)
    return all(sent.get((a, b), 0) > 0 for a in range(ranks) for b in range(ranks) if a != b)


@contextmanager
def region(size: int) -> Iterator[Path]:
    descriptor, name = tempfile.mkstemp(prefix=f"ivc-test-{os.getpid()}-mpi-", dir="/dev/shm")
    try:
        os.truncate(descriptor, size)
        yield Path(name)
    finally:
        os.close(descriptor)
        Path(name).unlink(missing_ok=True)


def _mpirun(
    run: Run, ranks: int, words: list[str], env: Mapping[str, str], timeout: float = 180
) -> subprocess.CompletedProcess[str]:
    return run.program(["mpirun", "--oversubscribe", "-np", str(ranks), *words], env, timeout)


def _integrity(run: Run, where: Path) -> None:
    words = [program("integrity"), "--iterations", "2", "--max-size", "1000000"]
    for label, selection in SELECTIONS.items():
        for ranks in (2, 4):
            env = {**environment(str(where)), **selection}
            done = _mpirun(run, ranks, words, env)
            what = f"integrity, {ranks} ranks, {label}"
            if run.check(what, done.returncode == 0, done.stdout):
                run.check(f"{what}: through memory", all_pairs(done.stdout, ranks), done.stdout)


def _one_sided(run: Run, where: Path) -> None:
    """One-sided operations by messages, as between guests, instead of Open MPI's own memory."""
    env = {**environment(str(where)), "OMPI_MCA_osc": "^ucx,sm,rdma"}
    done = _mpirun(run, 3, [program("integrity"), "--iterations", "2"], env)
    run.check("integrity, 3 ranks, one-sided by messages", done.returncode == 0, done.stdout)


def _without_region(run: Run) -> None:
    """The plug-in steps aside without a word; the job runs over what else there is."""
    words = [program("integrity"), "--iterations", "1", "--max-size", "100000"]
    for label in ("btl ivc,tcp,self", "no option"):
        done = _mpirun(run, 2, words, {**environment("none"), **SELECTIONS[label]})
        good = done.returncode == 0 and not pairs_by_memory(done.stdout)
        what = f"no region, {label}: another path"
        if run.check(what, good, done.stdout):
            run.check(f"{what}, without a word", "ivc" not in done.stdout, done.stdout)


def _other_programs(run: Run, where: Path) -> None:
    for name, ranks in (("many", 3), ("threads", 2), ("spawn", 2)):
        if not Path(program(name)).exists():
            run.failed(f"{name} is not built")
            continue
        done = _mpirun(run, ranks, [program(name)], environment(str(where)))
        run.check(f"{name}, {ranks} ranks", done.returncode == 0, done.stdout)


def _provider_environment(region: str) -> dict[str, str]:
    return {
        **environment(region),
        "FI_PROVIDER_PATH": str(_provider_file().parent),
        "FI_PROVIDER": "ivc",
        "FI_TCP_IFACE": "lo",
    }


def _provider(run: Run, where: Path) -> None:
    """Open MPI through the libfabric provider, by memory and by network."""
    if not _provider_file().exists():
        run.skipped("Open MPI through libfabric", "libivc-fi.so is not built (libfabric-dev)")
        return
    words = [program("integrity"), "--iterations", "2", "--max-size", "1000000"]
    for label, selection in OVER_LIBFABRIC.items():
        for path, place in (("memory", str(where)), ("network", "none")):
            env = {**_provider_environment(place), **selection}
            done = _mpirun(run, 2, words, env)
            what = f"integrity, 2 ranks, {label}"
            if run.check(f"{what}, {path}", done.returncode == 0, done.stdout):
                by_memory = re.search(r"endpoint .*: memory: sent [1-9]", done.stdout) is not None
                run.check(f"{what}: by {path}", by_memory == (path == "memory"), done.stdout)


def _windows(run: Run, where: Path) -> None:
    """Windows in the region: served while their owner is stopped."""
    library = paths.mpi_alloc()
    if not _provider_file().exists():
        run.skipped("windows in the region", "libivc-fi.so is not built (libfabric-dev)")
        return
    env = {
        **_provider_environment(str(where)),
        **OVER_LIBFABRIC["btl/ofi"],
        "OMPI_MCA_osc": "rdma",
    }
    words = ["-x", f"LD_PRELOAD={library}", program("onesided"), "--stop", "--expect", "direct"]
    done = _mpirun(run, 2, words, env)
    run.check("windows of a stopped rank are served", done.returncode == 0, done.stdout)


#: The plug-in's put, get and atomics; what they do not serve (shared windows) is osc/sm's.
_BY_PLUGIN = {"OMPI_MCA_osc": "^ucx,pt2pt", "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "ivc,self"}

#: As ssh, on this machine: the other node is a name of its own.
_AGENT = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
exec unshare --uts sh -c "hostname $host; $*"
"""


def _two_nodes(run: Run, ranks: int, words: list[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """On two nodes by name, so that Open MPI shares no memory between them by itself."""
    with tempfile.TemporaryDirectory(prefix="ivc-test-") as scratch:
        agent = Path(scratch) / "agent"
        agent.write_text(_AGENT)
        agent.chmod(0o755)
        more = ["--mca", "plm_rsh_agent", str(agent), "--mca", "plm_rsh_no_tree_spawn", "1"]
        more += ["--mca", "oob_tcp_if_include", "lo", "--bind-to", "none", "--oversubscribe"]
        more += ["--host", f"ivc-a:{ranks // 2},ivc-b:{ranks // 2}", "-np", str(ranks), *words]
        named = ["unshare", "--uts", "sh", "-c", 'hostname ivc-a; exec "$@"', "sh", "mpirun", *more]
        return run.program(named, env, 180)


def _plugin_windows(run: Run, where: Path) -> None:
    """The plug-in's put, get and atomics: every kind of window, all bytes and sums."""
    env = {**environment(str(where)), **_BY_PLUGIN}
    preload = ["-x", f"LD_PRELOAD={paths.mpi_alloc()}"]
    for label, more in (("malloc()", []), ("the region", preload)):
        for ranks in (2, 4):
            words = [*more, program("windows"), "--iterations", "10"]
            done = _mpirun(run, ranks, words, env)
            good = done.returncode == 0 and "windows: ok" in done.stdout
            run.check(f"windows in memory of {label}, {ranks} ranks", good, done.stdout)
    words = [*preload, program("onesided"), "--stop", "--expect", "direct"]
    done = _mpirun(run, 2, words, env)
    run.check("windows of a stopped rank are served by the plug-in", done.returncode == 0, done.stdout)
    if os.geteuid() != 0:
        run.skipped("windows between nodes", "must be root to name another node")
        return
    # Not dynamic ones: osc/rdma of 4.1.4 waits for itself.
    words = [program("windows"), "--iterations", "10", "--kinds", "create,alloc_mem,allocate"]
    network = {"IVC_REGION": "none", "OMPI_MCA_btl_ivc_network": "1", "FI_TCP_IFACE": "lo"}
    for label, more_env in (("memory", {}), ("network", network)):
        for ranks in (2, 4):
            done = _two_nodes(run, ranks, words, {**env, **more_env})
            good = done.returncode == 0 and "windows: ok" in done.stdout
            run.check(f"windows between nodes, by {label}, {ranks} ranks", good, done.stdout)
    why = "; not by memory: this process has no region"
    run.check("the statistics say why not by memory", done.stdout.count(why) == 4 * 3, done.stdout)
    cure = "^ucx,rdma"
    words = [program("windows"), "--iterations", "10", "--kinds", "dynamic"]
    done = _two_nodes(run, 2, words, env)
    said = done.returncode != 0 and f"try --mca osc {cure}" in done.stdout
    run.check("a dynamic window between nodes ends the job, with the cure", said, done.stdout)
    done = _two_nodes(run, 2, words, {**env, "OMPI_MCA_osc": cure})
    good = done.returncode == 0 and "windows: ok" in done.stdout
    run.check(f"dynamic windows between nodes with osc {cure}", good, done.stdout)


def _lent(run: Run, where: Path) -> None:
    """Messages in memory of the region are read in place, through both adapters."""
    words = ["-x", f"LD_PRELOAD={paths.mpi_alloc()}", program("integrity"), "--alloc-mem"]
    ways = {"plug-in": environment(str(where))}
    if _provider_file().exists():
        ways["mtl/ofi"] = {**_provider_environment(str(where)), **OVER_LIBFABRIC["mtl/ofi"]}
    else:
        run.skipped("messages in the region's memory, mtl/ofi",
                    "libivc-fi.so is not built (libfabric-dev)")  # fmt: skip
    for label, env in ways.items():
        done = _mpirun(run, 2, [*words, "--iterations", "3"], env)
        what = f"messages in the region's memory, {label}"
        run.check(what, done.returncode == 0, done.stdout)
        in_place = done.stdout.count("read in place") >= 2
        run.check(f"{what}: they are read in place", in_place, done.stdout)


def _heap(run: Run, where: Path) -> None:
    """What malloc() promises, under libivc-heap.so, and messages out of its memory; and where there is no region."""
    preload = ["-x", f"LD_PRELOAD={paths.heap()}"]
    done = _mpirun(run, 2, [*preload, program("heap")], environment(str(where)))
    run.check("malloc() in the region", done.returncode == 0, done.stdout)
    in_place = done.stdout.count("read in place") >= 2
    run.check("malloc() in the region: messages are read in place", in_place, done.stdout)
    words = [*preload, program("heap"), "without"]
    done = _mpirun(run, 2, words, environment("none"))
    run.check("malloc() without a region", done.returncode == 0, done.stdout)
    if _provider_file().exists():
        env = {**_provider_environment(str(where)), **OVER_LIBFABRIC["mtl/ofi"]}
        done = _mpirun(run, 2, [*preload, program("heap")], env)
        run.check("malloc() in the region, mtl/ofi", done.returncode == 0, done.stdout)
    both = f"{paths.mpi_alloc()}:{paths.heap()}"
    words = ["-x", f"LD_PRELOAD={both}", program("integrity"), "--iterations", "2", "--alloc-mem"]
    done = _mpirun(run, 2, words, environment(str(where)))
    good = done.returncode == 0 and done.stdout.count("memory for MPI: ") == 4
    run.check("malloc() and MPI_Alloc_mem() in the region, by two libraries", good, done.stdout)
    words = [*preload, "-x", "IVC_HEAP_LEAST=a lot", program("integrity"), "--iterations", "1"]
    done = _mpirun(run, 2, words, environment(str(where)))
    good = done.returncode == 0 and "IVC_HEAP_LEAST" in done.stdout
    run.check("malloc() with a wrong IVC_HEAP_LEAST: as without, with a line", good, done.stdout)


@contextmanager
def _small_file_system() -> Iterator[Path]:
    """A tmpfs with room for a region of 64 MiB and a little more."""
    with tempfile.TemporaryDirectory(prefix="ivc-test-full-") as folder:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=80m", "none", folder], check=True)
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)


def _full(run: Run) -> None:
    """A region whose file system fills up, and one that is shortened, under blocks of malloc() and messages."""
    if os.geteuid() != 0:
        run.skipped("a file system that fills up", "a tmpfs of our own needs root")
        return
    ways = {"malloc() in the region": ["-x", f"LD_PRELOAD={paths.heap()}"], "malloc() elsewhere": []}
    for label, preload in ways.items():
        with _small_file_system() as folder:
            where = folder / "region"
            where.touch()
            os.truncate(where, 64 << 20)
            words = [*preload, program("full"), str(folder / "filler")]
            done = _mpirun(run, 2, words, environment(str(where)))
            run.check(f"a file system that fills up, {label}", done.returncode == 0, done.stdout)
    with region(64 << 20) as where:
        words = [*ways["malloc() in the region"], program("full"), str(where), "shorten"]
        done = _mpirun(run, 2, words, environment(str(where)))
    ended = done.returncode != 0 and "its memory was taken away under this process" in done.stdout
    good = ended and "other bytes" not in done.stdout
    run.check("a region that is shortened under malloc() ends the job, with a line", good, done.stdout)


def _exchange(
    run: Run, where: Path, ranks: int, size: int, rounds: int, **more: str
) -> subprocess.CompletedProcess[str]:
    """Messages between ranks 0 and 1 through the plug-in, `rounds` single ones and as many at a time, to and fro."""
    words = ["--test", "latency", "--sizes", f"{size}-{size}", "--iterations", str(rounds)]
    # No time limit that could end them earlier: a first round that took long is not to make them fewer.
    words += ["--warmup", "1", "--settle", "0", "--seconds", "600"]
    env = {**environment(str(where)), **SELECTIONS["btl ivc,self"], **more}
    return _mpirun(run, ranks, [str(paths.build() / "bench" / "bench_mpi"), *words], env)


def _whole(run: Run, where: Path) -> None:
    """What one packet has room for takes two of them, the message and the answer, and no announcement before."""
    rounds = 1000
    done = _exchange(run, where, 2, 24 << 10, rounds)
    sent = [int(m[5]) for m in _STATS.finditer(done.stdout)]
    good = len(sent) == 2 and all(4 * rounds <= packets < 4.5 * rounds for packets in sent)
    run.check("24 KiB: announced in one piece", done.returncode == 0 and good, done.stdout)


def _crowded(run: Run, where: Path) -> None:
    """More ranks than processors: 16 KiB go at once, in one packet, unless somebody wants it otherwise."""
    what = "16 KiB among more ranks than processors"
    ranks, size = os.sysconf("SC_NPROCESSORS_ONLN") + 1, 16 << 10
    if ranks > 17:
        run.skipped(what, f"{ranks - 1} processors: so many ranks are too many for a test")
        return
    cases: list[tuple[str, int, dict[str, str]]] = [
        ("as it is", 1, {}),
        ("4160", 2, {"OMPI_MCA_btl_ivc_eager_limit": "4160"}),
    ]
    for limit, packets_each, wanted in cases:
        done = _exchange(run, where, ranks, size, 200, **wanted)
        # Of the two ranks that exchange messages: packets in each.
        each = [int(m[5]) * size / int(m[6]) for m in _STATS.finditer(done.stdout) if {m[1], m[3]} == {"0", "1"}]
        good = len(each) == 2 and all(abs(n - packets_each) < 0.4 for n in each)
        run.check(f"{what}, eager limit {limit}", done.returncode == 0 and good, done.stdout)


def _free_lists(run: Run, where: Path) -> None:
    """One descriptor in each free list: sends wait for it, also where answers of the plug-in's own are under way."""
    few = {
        **environment(str(where)),
        **SELECTIONS["btl ivc,self"],
        **ONE_SIDED,
        "OMPI_MCA_btl_ivc_free_list_max": "1",
        "OMPI_MCA_btl_ivc_free_list_num": "2",
    }
    integrity = [program("integrity"), "--iterations", "2", "--max-size", "1000000"]
    cases = {
        "integrity": integrity,
        "floods": [program("many")],
        "read in place": ["-x", f"LD_PRELOAD={paths.mpi_alloc()}", *integrity, "--alloc-mem"],
    }
    for name, words in cases.items():
        done = _mpirun(run, 3, words, few)
        run.check(f"free lists of one descriptor: {name}", done.returncode == 0, done.stdout)
    said = "btl_ivc_free_list_num 2 is outside of 0 to 1" in done.stdout
    run.check("free lists: more at first than at most: a line says so", said, done.stdout)
    done = _mpirun(run, 2, [program("threads")], few)
    good = done.returncode == 0 and "btl_ivc_free_list_max 1 is not for MPI_THREAD_MULTIPLE" in done.stdout
    run.check("free lists: no limit with MPI_THREAD_MULTIPLE, with a line", good, done.stdout)


def _looks(run: Run, where: Path) -> None:
    """Where Open MPI gives way after each look in vain, the plug-in keeps it from most of that; nor does
    it put to sleep who only looks."""
    env = {**environment(str(where)), **SELECTIONS["btl ivc,self"]}
    yields = {"OMPI_MCA_mpi_yield_when_idle": "1"}
    done = _mpirun(run, 2, [program("looks")], {**env, **yields})
    run.check("who only looks keeps its processor", done.returncode == 0, done.stdout)
    done = _mpirun(run, 2, [program("looks"), "sleeps"], env)
    run.check("who waits sleeps, who only looks does not", done.returncode == 0, done.stdout)


def _required(run: Run, where: Path) -> None:
    """Memory to every peer is required: a job in one region runs; one in two, or with none, ends and says why."""
    ways = {"plug-in": {**environment(str(where)), **SELECTIONS["btl ivc,tcp,self"]}}
    if _provider_file().exists():
        ways["mtl/ofi"] = {**_provider_environment(str(where)), **OVER_LIBFABRIC["mtl/ofi"]}
    words = [program("integrity"), "--iterations", "1", "--max-size", "1000"]
    with region(16 << 20) as other:
        for label, env in ways.items():
            env = {**env, "IVC_REQUIRE": "memory"}
            done = _mpirun(run, 2, words, env)
            run.check(f"memory is required, and there, {label}", done.returncode == 0, done.stdout)
            cases = {str(other): "is in another region than ours", "none": "no region is to be used"}
            for place, why in cases.items():
                both = ["-x", f"IVC_REGION={where}", *words, ":", "-np", "1", "-x", f"IVC_REGION={place}", *words]
                mixed = {name: value for name, value in env.items() if name != "IVC_REGION"}
                done = _mpirun(run, 1, both, mixed)
                good = done.returncode != 0 and why in done.stdout and "IVC_REQUIRE=memory" in done.stdout
                run.check(f"memory is required, {label}: {why}", good, done.stdout)


def _spelling(run: Run, where: Path) -> None:
    """FI_PROVIDER that libfabric will not take for us is named; one that it takes, or that means others, is not."""
    if not _provider_file().exists():
        run.skipped("spellings of FI_PROVIDER", "libivc-fi.so is not built (libfabric-dev)")
        return
    words = [program("integrity"), "--iterations", "1", "--max-size", "1000"]
    for spelling, odd in ((" ivc", True), ("ivc;tcp", True), ("IVC", False), ("tcp,ivc", False), ("^ivc", False)):
        env = {**_provider_environment(str(where)), **OVER_LIBFABRIC["mtl/ofi"], "FI_PROVIDER": spelling}
        done = _mpirun(run, 2, words, env)
        said = "does not name this provider" in done.stdout
        run.check(f"FI_PROVIDER='{spelling}': {'a line' if odd else 'no line'}", said == odd, done.stdout)


def _lost_peer(run: Run, where: Path) -> None:
    """A launcher that lets ranks go on (--enable-recovery) leaves it to us to end those that lose a peer."""
    if not _provider_file().exists():
        run.skipped("IVC_ON_PEER_LOSS", "libivc-fi.so is not built (libfabric-dev)")
        return
    env = {**_provider_environment(str(where)), **OVER_LIBFABRIC["mtl/ofi"], "IVC_ON_PEER_LOSS": "abort"}
    with _one_of_three_killed(run, "mtl/ofi", ["--enable-recovery"], env) as job:
        if job is None:
            return
        end = time.monotonic() + 20
        while _ranks_of(job) and time.monotonic() < end:
            time.sleep(0.1)
        run.check("who loses a peer ends", not _ranks_of(job))
        job.kill()      # Open MPI 4.1's mpirun stays behind after such a job
        said = job.communicate(timeout=30)[0]
        run.log(said)
        by_us = said.count("ends with its peer (IVC_ON_PEER_LOSS=abort)") == 2
        run.check("who loses a peer ends: by the switch", by_us, said)


def _start(words: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["mpirun", "--oversubscribe", *words],
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _profile_ways(where: Path) -> dict[str, dict[str, str]]:
    ways = {
        "plug-in": {**environment(str(where)), **SELECTIONS["btl ivc,self"]},
        "plug-in, network": {**environment("none"), **SELECTIONS["btl ivc,self"], "OMPI_MCA_btl_ivc_network": "1"},
    }
    if _provider_file().exists():
        for path, place in (("memory", str(where)), ("network", "none")):
            ways[f"mtl/ofi, {path}"] = {**_provider_environment(place), **OVER_LIBFABRIC["mtl/ofi"]}
    return {label: {**env, "FI_TCP_IFACE": "lo"} for label, env in ways.items()}


def _profile(run: Run, where: Path) -> None:
    """Random traffic: what each rank sent to each other is what that one received, to the byte."""
    words = [program("integrity"), "--iterations", "3", "--max-size", "1000000"]
    for label, env in _profile_ways(where).items():
        with tempfile.TemporaryDirectory(prefix="ivc-test-") as folder:
            done = _mpirun(run, 3, words, {**env, "IVC_STATS": f"json:{folder}"})
            found = profile.read(Path(folder))
        what = f"a profile, {label}"
        ranks = sorted(one.head["rank"] for one in found.values())
        run.check(f"{what}: of all ranks", done.returncode == 0 and ranks == [0, 1, 2], done.stdout)
        differences = list(profile.differences(found))
        run.check(f"{what}: sent is received", bool(found) and not differences, "\n".join(differences))
        by_path = profile.sent_by_path(found)
        path = "network" if "network" in label else "memory"
        run.check(f"{what}: by {path}", by_path[path] > 300 and by_path[path] == sum(by_path.values()), f"{by_path}")
        run.check(f"{what}: no lines", "ivc: rank" not in done.stdout, done.stdout)


def _profile_onesided(run: Run, where: Path) -> None:
    env = {**environment(str(where)), **_BY_PLUGIN}
    with tempfile.TemporaryDirectory(prefix="ivc-test-") as folder:
        words = [program("windows"), "--iterations", "3", "--kinds", "create"]
        done = _mpirun(run, 2, words, {**env, "IVC_STATS": f"json:{folder}"})
        peers = [peer for one in profile.read(Path(folder)).values() for peer in one.peers.values()]
    counted = [peer["onesided"]["memory"] for peer in peers]
    good = len(counted) == 2 and all(0 < one["operations"] < one["bytes"] for one in counted)
    run.check("a profile: puts, gets and atomics", done.returncode == 0 and good, f"{counted}\n{done.stdout}")


def _profile_bad_folder(run: Run, where: Path) -> None:
    """The job goes on, with a line."""
    words = [program("integrity"), "--iterations", "1", "--max-size", "1000"]
    with tempfile.NamedTemporaryFile(prefix="ivc-test-") as file:
        for asked, said in ((f"json:{file.name}/x", "cannot make a file: Not a directory"), ("json", "names no folder")):
            done = _mpirun(run, 2, words, {**environment(str(where)), "IVC_STATS": asked})
            run.check(f"a profile: {said}", done.returncode == 0 and said in done.stdout, done.stdout)


def _profile_killed(run: Run, where: Path) -> None:
    """A killed rank leaves what was counted until then, and no last line."""
    with tempfile.TemporaryDirectory(prefix="ivc-test-") as folder:
        env = {**environment(str(where)), **SELECTIONS["btl ivc,self"], "IVC_STATS": f"json:{folder}"}
        with _one_of_three_killed(run, "with a profile", [], env) as job:
            if job is None:
                return
            run.log(job.communicate(timeout=60)[0])
        found = profile.read(Path(folder))
    of_rank = {one.head["rank"]: one for one in found.values()}
    good = len(of_rank) == 3 and not of_rank[1].ended and len(of_rank[1].peers) == 2
    counted = profile.sent_by_path({"1": of_rank[1]}) if good else {}
    run.check("a killed rank leaves its profile", counted.get("memory", 0) > 100, f"{of_rank}")


def _counted(run: Run, where: Path) -> None:
    """What libivc-profile.so counts, in C and in Fortran."""
    env = {**environment(str(where)), **SELECTIONS["btl ivc,self"]}
    launcher = ["mpirun", "--oversubscribe", "-np"]
    profile.counted(run, "Open MPI", launcher, Path(program("counted")), env)
    if _provider_file().exists():
        profile.counted_by_hydra(run, where)
    else:
        run.skipped("calls are counted, MPICH", "libivc-fi.so is not built (libfabric-dev)")


def _two_jobs(run: Run, where: Path) -> None:
    words = ["-np", "2", program("integrity"), "--seconds", "4"]
    jobs = [_start(words, environment(str(where))) for _ in range(2)]
    try:
        said = [job.communicate(timeout=120)[0] for job in jobs]
    finally:
        for job in jobs:
            job.kill()
    run.log("\n".join(said))
    run.check("two jobs in one region", all(job.returncode == 0 for job in jobs), "\n".join(said))


def _ranks_of(job: subprocess.Popen[str]) -> list[int]:
    children = Path(f"/proc/{job.pid}/task/{job.pid}/children")
    return [int(pid) for pid in children.read_text().split()] if children.exists() else []


@contextmanager
def _one_of_three_killed(
    run: Run, way: str, options: Sequence[str], env: Mapping[str, str]
) -> Iterator[subprocess.Popen[str] | None]:
    """A job of which a rank has just been killed; None, and a failure, when it did not run."""
    job = _start([*options, "-np", "3", program("integrity"), "--seconds", "60"], env)
    try:
        time.sleep(3)
        ranks = _ranks_of(job)
        if run.check(f"a job of three is running, {way}", len(ranks) == 3):
            os.kill(ranks[1], signal.SIGKILL)
            yield job
        else:
            yield None
    finally:
        job.kill()
        job.wait()


def _killed_rank(run: Run, where: Path) -> None:
    """One rank is killed: the job ends by itself, and the next one needs no cleaning by hand."""
    with _one_of_three_killed(run, "btl ivc", [], environment(str(where))) as job:
        if job is None:
            return
        try:
            said = job.communicate(timeout=30)[0]
            run.log(said)
            run.check("a killed rank ends the job", job.returncode != 0, said)
        except subprocess.TimeoutExpired:
            run.failed("a killed rank ends the job within 30 s")
    words = [program("integrity"), "--iterations", "1"]
    done = _mpirun(run, 3, words, environment(str(where)))
    good = done.returncode == 0 and all_pairs(done.stdout, 3)
    run.check("the next job works at once", good, done.stdout)


def host(run: Run) -> None:
    require()
    with region(64 << 20) as where:
        _integrity(run, where)
        _one_sided(run, where)
        _other_programs(run, where)
        _provider(run, where)
        _windows(run, where)
        _plugin_windows(run, where)
        _lent(run, where)
        _heap(run, where)
        _whole(run, where)
        _crowded(run, where)
        profiled(run, program("integrity"), environment(str(where)))
        placed(run)
        _free_lists(run, where)
        _looks(run, where)
        _required(run, where)
        _spelling(run, where)
        _lost_peer(run, where)
        _profile(run, where)
        _profile_onesided(run, where)
        _profile_bad_folder(run, where)
        _profile_killed(run, where)
        _counted(run, where)
        _two_jobs(run, where)
        _killed_rank(run, where)
    _without_region(run)
    _full(run)
    with region(2 << 20) as where:
        words = [program("integrity"), "--iterations", "1", "--max-size", "200000"]
        done = _mpirun(run, 6, words, environment(str(where)))
        run.check("6 ranks in a region of 2 MiB", done.returncode == 0, done.stdout)
    parameters = run.program(
        ["ompi_info", "--param", "btl", "ivc", "--level", "9"], environment("none")
    )
    run.check(
        "ompi_info describes the parameters",
        all(f"btl_ivc_{name}" in parameters.stdout for name in ("region", "stats", "ring_size", "free_list_max")),
        parameters.stdout,
    )
