"""`ivc env`: what it prints is what a shell sets; what it cannot know it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def run(*words: str, **settings: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("IVC_", "FI_", "I_MPI_", "OMPI_"))}
    return subprocess.run(
        [sys.executable, "-m", "ivc_host", "env", *words],
        capture_output=True,
        text=True,
        env={**kept, **settings},
        timeout=60,
    )


def set_by(text: str) -> dict[str, str]:
    """What a shell has in its environment after it has evaluated TEXT."""
    done = subprocess.run(
        ["env", "-i", "sh", "-c", f"{text}\n/usr/bin/env -0"], capture_output=True, text=True
    )
    return dict(entry.split("=", 1) for entry in done.stdout.split("\0") if entry)


@pytest.fixture
def build(tmp_path: Path) -> Path:
    """A build whose path a shell would take apart."""
    folder = tmp_path / "my build; echo"
    for name in ("libfabric/libivc-fi.so", "openmpi/mca_btl_ivc.so"):
        (folder / "adapters" / name).parent.mkdir(parents=True)
        (folder / "adapters" / name).touch()
    return folder


def test_mpich(build: Path) -> None:
    done = run("mpich", "--stats", IVC_BUILD=str(build), FI_PROVIDER_PATH="/a:/b")
    assert done.returncode == 0, done.stderr
    seen = set_by(done.stdout)
    assert seen["FI_PROVIDER_PATH"] == f"{build}/adapters/libfabric:/a:/b"
    assert (seen["FI_PROVIDER"], seen["MPIR_CVAR_CH4_NETMOD"]) == ("ivc", "ofi")
    assert seen["IVC_STATS"] == "1" and "IVC_REGION" not in seen


def test_twice_is_once(build: Path) -> None:
    ours = f"{build}/adapters/libfabric"
    done = run("mpich", IVC_BUILD=str(build), FI_PROVIDER_PATH=ours)
    assert set_by(done.stdout)["FI_PROVIDER_PATH"] == ours


@pytest.mark.parametrize(
    "region",
    ["relative/path", "", "uuid:zz", "pci:1", "pci:/etc", "Xen", "uuid:0f8fad5b-d9cb-469f-a165-70867728950"],
)
def test_what_cannot_be_a_regions_name(build: Path, region: str) -> None:
    done = run("mpich", "--region", region, IVC_BUILD=str(build))
    assert done.returncode == 2 and done.stdout == ""
    assert f"region {region!r}: not a path" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "region",
    ["/a b", "pci:0000:00:04.0", "uuid:0F8fad5b-d9cb-469f-a165-70867728950e", "xen", "none"],
)
def test_regions_by_every_name(build: Path, region: str) -> None:
    done = run("mpich", "--region", region, IVC_BUILD=str(build))
    assert set_by(done.stdout)["IVC_REGION"] == region


@pytest.mark.parametrize("folder", ["lib", "opt/mpi/libfabric/lib/prov"])
def test_intel_keeps_its_own_providers(build: Path, tmp_path: Path, folder: str) -> None:
    own = tmp_path / "intel" / folder
    own.mkdir(parents=True)
    (own / "libtcp-fi.so").touch()
    done = run("intel", "--root", str(tmp_path / "intel"), IVC_BUILD=str(build))
    assert done.returncode == 0, done.stderr
    seen = set_by(done.stdout)
    assert seen["FI_PROVIDER_PATH"] == f"{build}/adapters/libfabric:{own}"
    assert seen["I_MPI_ROOT"] == str(tmp_path / "intel")


def ompi(folder: Path, version: str, listed: str = "") -> dict[str, str]:
    """PATH, with an ompi_info of that version in front which has that list in its files."""
    fake = folder / "ompi_info"
    line = f"mca:mca:base:param:mca_base_env_list:value:{listed or '$OMPI_MCA_mca_base_env_list'}"
    words = (f"Open MPI v{version}", line, "path:pkglibdir:/usr/lib/openmpi")
    fake.write_text("#!/bin/sh\n" + "".join(f'echo "{word}"\n' for word in words))
    fake.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


LIST = "OMPI_MCA_mca_base_env_list"
INTERNAL = f"{LIST}_internal"
OURS = ["FI_PROVIDER_PATH", "FI_PROVIDER", "IVC_REGION"]


@pytest.mark.parametrize("version", ["5.0.11", "4.1.4"])
def test_openmpi_names_only_what_is_set(build: Path, tmp_path: Path, version: str) -> None:
    """Open MPI 5 stops at a name in its list that is not set, and is often not the one in PATH."""
    path = ompi(tmp_path, version)
    done = run("openmpi", "--region", "/dev/shm/x", IVC_BUILD=str(build), **path)
    seen = set_by(done.stdout)
    assert {name for name in seen if name.startswith(LIST)} == {LIST}
    assert seen[LIST].split(";") == OURS and all(name in seen for name in OURS)


def test_plugin_leaves_room_for_x(build: Path, tmp_path: Path) -> None:
    """Open MPI 4.1 ends a job with -x beside its first list."""
    path = ompi(tmp_path, "4.1.4")
    done = run("openmpi", "--plugin", "--region", "/dev/shm/x", IVC_BUILD=str(build), **path)
    seen = set_by(done.stdout)
    assert {name for name in seen if name.startswith(LIST)} == {INTERNAL}
    assert "IVC_REGION" in seen[INTERNAL].split(";")


@pytest.mark.parametrize(
    "words, listed, own, setting",
    [
        ([], "", {LIST: "MY;IVC_REGION"}, LIST),
        (["--plugin"], "", {LIST: "MY;IVC_REGION"}, LIST),  # it takes only one of its two lists
        (["--plugin"], "MY;IVC_REGION", {}, LIST),
        (["--plugin"], "", {INTERNAL: "MY;IVC_REGION"}, INTERNAL),
    ],
)
def test_openmpi_keeps_the_users_list(
    build: Path, tmp_path: Path, words: list[str], listed: str, own: dict[str, str], setting: str
) -> None:
    path = ompi(tmp_path, "4.1.4", listed)
    done = run("openmpi", *words, "--region", "/dev/shm/x", IVC_BUILD=str(build), **path, **own)
    seen = set_by(done.stdout)
    assert {name for name in seen if name.startswith(LIST)} == {setting}
    assert seen[setting].split(";")[:2] == ["MY", "IVC_REGION"]


def test_heap_is_preloaded_first(tmp_path: Path) -> None:
    for name in ("libfabric/libivc-fi.so", "mpi/libivc-heap.so"):
        (tmp_path / "adapters" / name).parent.mkdir(parents=True)
        (tmp_path / "adapters" / name).touch()
    # The one of before is not there: the loader says so, in our stderr and in that of what we start.
    path = ompi(tmp_path, "5.0.11")
    done = run("openmpi", "--heap", IVC_BUILD=str(tmp_path), LD_PRELOAD="/no/before.so", **path)
    seen = set_by(done.stdout)
    assert seen["LD_PRELOAD"] == f"{tmp_path}/adapters/mpi/libivc-heap.so:/no/before.so"
    assert "LD_PRELOAD" in seen["OMPI_MCA_mca_base_env_list"].split(";")


def test_heap_where_it_cannot_be_preloaded(build: Path) -> None:
    (build / "adapters" / "mpi").mkdir()
    (build / "adapters" / "mpi" / "libivc-heap.so").touch()
    done = run("mpich", "--heap", IVC_BUILD=str(build))
    assert done.returncode == 1 and "blanks" in done.stderr and not done.stdout


def test_plugin_is_not_for_other_versions(build: Path, tmp_path: Path) -> None:
    done = run("openmpi", "--plugin", IVC_BUILD=str(build), **ompi(tmp_path, "5.0.11"))
    assert done.returncode == 1 and done.stdout == ""
    assert "for Open MPI 4.1" in done.stderr and "5.0.11" in done.stderr


@pytest.mark.parametrize("words", [["mpich"], ["intel", "--root", "/nonexistent"]])
def test_what_is_not_there(words: list[str], tmp_path: Path) -> None:
    nowhere = {"PKG_CONFIG_PATH": "", "PKG_CONFIG_LIBDIR": "/nonexistent"}
    done = run(*words, IVC_BUILD=str(tmp_path), **nowhere)
    assert done.returncode == 1 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("ivc: ")
