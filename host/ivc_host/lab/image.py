"""The system that guests with an image run: root file system, kernel and first archive, made once.

The image holds the release that the host itself runs, from the sources that the host's apt is
configured with, so that programs built on the host run in the guest. What lies in the cache is
always complete: it is built beside its place and renamed. Its name is derived from the release
and the recipe, so a changed recipe makes a new image and an unchanged one is never made again.
"""

from __future__ import annotations

import gzip
import hashlib
import inspect
import json
import lzma
import os
import platform
import shutil
import struct
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ..errors import LabError, MissingError
from . import initramfs
from .hypervisor import Progress, cache_dir, cache_lock

#: What a guest needs to run MPI programs, beside the distribution's essential packages.
PACKAGES = (
    "openssh-server",
    "openmpi-bin",
    "lammps",
    "iproute2",
    "kmod",
    "busybox-static",
    "mount",
    "procps",
)
#: Kernels with virtio, overlay and 9p. Debian's `cloud` kernels have no 9p.
KERNELS = {"debian": "linux-image-amd64", "ubuntu": "linux-image-virtual"}
#: Loaded in the guest, with whatever they depend on. What is built in is skipped.
MODULES = (
    "virtio_pci",
    "virtio_blk",
    "virtio_net",
    "virtio-rng",
    "ext4",
    "overlay",
    "9pnet_virtio",
    "9p",
)
#: ext4 asks for it by another name; kernels since 6.14 need and have no such module.
OPTIONAL_MODULES = ("crc32c_generic",)


@dataclass(frozen=True)
class Recipe:
    """What distinguishes one image from another; the rest is the same for all."""

    #: The beginning of its name in the cache.
    name: str
    packages: tuple[str, ...] = PACKAGES
    modules: tuple[str, ...] = MODULES


QEMU = Recipe("qemu")
#: For both kinds of system that run on Xen: dom0 (tools, back ends) and guests (front ends).
XEN = Recipe(
    "xen",
    packages=(*PACKAGES, "xen-system-amd64", "xenstore-utils"),
    modules=(
        *MODULES,
        "xen-blkfront",
        "xen-netfront",
        "xen-blkback",
        "xen-netback",
        "xen-gntdev",
        "xen-gntalloc",
        "xen-evtchn",
        "xen-privcmd",
        "xenfs",
        "bridge",
    ),
)
#: Nobody reads or compiles in a guest.
EXCLUDED = (
    "/usr/share/doc/*",
    "/usr/share/man/*",
    "/usr/share/info/*",
    "/usr/share/locale/*",
    "/usr/include/*",
    "/usr/lib/gcc/*/*/cc1*",
    "/usr/lib/gcc/*/*/f951",
    "/usr/lib/gcc/*/*/lto*",
    "/usr/lib/x86_64-linux-gnu/*.a",
)
NEEDED = {
    "mmdebstrap": "mmdebstrap",
    "mke2fs": "e2fsprogs",
    "dpkg-deb": "dpkg",
    "unshare": "util-linux",
}

#: Runs inside mmdebstrap, with the guest's root as $1 and apt set up for it: unpack the kernel's
#: packages without installing them, because that would make an initramfs which nobody uses.
KERNEL_HOOK = r"""
set -e
export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"
work="$1/kernel"
mkdir "$work" && cd "$work"
apt-cache depends --recurse --important "$IVC_KERNEL" |
    grep -E '^linux-(image|modules)-[0-9]' | sort -u >packages
apt-get -q -o APT::Sandbox::User=root download $(cat packages)
for deb in *.deb; do dpkg-deb --extract "$deb" .; done
rm -f ./*.deb
[ ! -d lib/modules ] || { mkdir -p usr/lib; mv lib/modules usr/lib/; }
version=$(ls usr/lib/modules)
mkdir -p "$1/usr/lib/modules"
mv "usr/lib/modules/$version" "$1/usr/lib/modules/"
chroot "$1" depmod "$version"
"""


@dataclass(frozen=True)
class Image:
    """A complete image in the cache."""

    path: Path

    @property
    def root(self) -> Path:
        """The root file system; guests only read it."""
        return self.path / "root.ext4"

    @property
    def kernel(self) -> Path:
        """Unpacked if possible: the emulated processor takes two seconds to do it at every boot."""
        return self.path / "kernel"

    @property
    def xen(self) -> Path:
        """Unpacked, for the same reason; only where the recipe installs one."""
        return self.path / "xen"

    @property
    def archive(self) -> Path:
        """The first part of every guest's initial archive."""
        return self.path / "initramfs.cpio"

    @property
    def kernel_version(self) -> str:
        """Such as 6.1.0-56-amd64."""
        return self._version("kernel")

    @property
    def xen_version(self) -> str:
        """Such as 4.17."""
        return self._version("xen")

    def _version(self, part: str) -> str:
        return str(json.loads((self.path / "image.json").read_text())[part])

    def write_archive(self, target: Path, seed: initramfs.Seed) -> None:
        """The whole initial archive of one guest."""
        target.touch(0o600)  # it holds the lab's private keys
        target.write_bytes(self.archive.read_bytes() + seed.archive())


def find(recipe: Recipe = QEMU) -> Image | None:
    """The image for this host, when it has been made."""
    path = cache_dir() / _name(recipe, _os_release())
    return Image(path) if path.is_dir() else None


def make(progress: Progress, recipe: Recipe = QEMU) -> Image:
    """The image for this host; made from the distribution's packages when it is not there."""
    release = _os_release()
    with cache_lock(_name(recipe, release)) as path:
        if not path.is_dir():
            _require()
            progress.step("making the guests' image (once, about a minute)")
            _build(recipe, release, path, progress)
        return Image(path)


def _os_release() -> dict[str, str]:
    release = platform.freedesktop_os_release()
    if platform.machine() != "x86_64":
        raise LabError(f"guests with an image need an x86_64 host, this is {platform.machine()}")
    if release.get("ID") not in KERNELS or "VERSION_CODENAME" not in release:
        raise LabError(
            f"no recipe for a guest image on {release.get('PRETTY_NAME', 'this system')}",
            hint="images are made on Debian and Ubuntu",
        )
    return release


def _name(recipe: Recipe, release: dict[str, str]) -> str:
    parts = [recipe, KERNELS, OPTIONAL_MODULES, EXCLUDED, KERNEL_HOOK, initramfs.INIT]
    parts += [inspect.getsource(part) for part in _RECIPE_CODE]
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()[:10]
    return f"{recipe.name}-{release['VERSION_CODENAME']}-{digest}"


def _require() -> None:
    missing = sorted({p for command, p in NEEDED.items() if shutil.which(command) is None})
    if missing:
        raise MissingError(
            f"the guests' image needs packages that are not installed: {' '.join(missing)}",
            hint="./run setup installs them",
        )
    if os.geteuid() != 0:
        raise MissingError("the guests' image can only be made by root", hint="use sudo")


def _build(recipe: Recipe, release: dict[str, str], path: Path, progress: Progress) -> None:
    """Make everything in a directory beside `path`, then rename it."""
    sources = apt_sources(release["VERSION_CODENAME"])
    for left in path.parent.glob(f"{path.name}.new-*"):
        shutil.rmtree(left)  # of a run that was killed; the lock says that it no longer runs
    new = Path(tempfile.mkdtemp(prefix=f"{path.name}.new-", dir=path.parent))
    new.chmod(0o755)
    try:
        root = new / "root"
        progress.step("installing the guests' packages")
        _install(recipe, release, sources, root, new / "mmdebstrap.log")
        progress.step("writing the guests' root file system")
        versions = {"kernel": _take_kernel(recipe, root, new), "xen": _take_xen(root, new)}
        write_disk(root, new / "root.ext4", "ivc-root")
        shutil.rmtree(root)
        (new / "image.json").write_text(json.dumps(versions))
        new.rename(path)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def apt_sources(codename: str) -> list[str]:
    """The distribution's own package sources, as apt is configured here, one `deb` line each."""
    fields = ("CREATED_BY", "ORIGIN", "REPO_URI", "RELEASE", "COMPONENT", "CODENAME")
    shown = _output(
        ["apt-get", "indextargets", "--format", "|".join(f"$({name})" for name in fields)]
    )
    lines = set()
    for line in shown.splitlines():
        kind, origin, uri, suite, component, code = line.split("|")
        # Security and update suites follow; backports would bring packages the host has not.
        ours = code == codename or code.startswith(f"{codename}-")
        if kind == "Packages" and origin in ("Debian", "Ubuntu") and ours:
            if not code.endswith("-backports"):
                lines.add(f"deb {uri} {suite} {component}")
    if not lines:
        raise LabError(
            f"apt knows no package source for {codename}",
            hint="run apt-get update, or look into /etc/apt/sources.list",
        )
    return sorted(lines)


def apt_transport() -> list[str]:
    """How apt is told to reach its sources here (a proxy, certificates), in its own words."""
    lines = _output(["apt-config", "dump", "--no-empty"]).splitlines()
    return [line for line in lines if line.startswith(("Acquire::http::", "Acquire::https::"))]


def _install(
    recipe: Recipe, release: dict[str, str], sources: list[str], root: Path, log: Path
) -> None:
    """Fill `root` with packages, and $root/kernel with the kernel's."""
    excluded = [f"--dpkgopt=path-exclude={pattern}" for pattern in EXCLUDED]
    # A mount and process namespace of its own: whenever and however this ends, no mount inside
    # the root (/dev!) is left that a removal could reach through.
    command = [
        *("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"),
        "mmdebstrap",
        "--mode=root",
        "--format=directory",
        "--variant=essential",
        f"--include={','.join(recipe.packages)}",
        *excluded,
        *(f"--aptopt={line}" for line in apt_transport()),
        f"--customize-hook={KERNEL_HOOK}",
        release["VERSION_CODENAME"],
        str(root),
        "-",
    ]
    with open(log, "w") as out:
        done = subprocess.run(
            command,
            input="\n".join(sources) + "\n",
            stdout=out,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "LC_ALL": "C.UTF-8", "IVC_KERNEL": KERNELS[release["ID"]]},
        )
    if done.returncode:
        end = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise LabError(
            f"mmdebstrap could not install the guests' packages (exit {done.returncode})",
            hint="the first time needs the package sources of this machine: is it online?",
            detail=end,
        )


def _take_kernel(recipe: Recipe, root: Path, target: Path) -> str:
    """Move the kernel out of the root and make the first archive; returns the kernel's version."""
    kernel = next((root / "kernel/boot").glob("vmlinuz-*"))
    version = kernel.name.removeprefix("vmlinuz-")
    (target / "kernel").write_bytes(_unpacked_kernel(kernel.read_bytes()))
    modules = _load_order(recipe, root / "usr/lib/modules" / version)
    busybox = (root / "bin/busybox").read_bytes()
    (target / "initramfs.cpio").write_bytes(initramfs.base(busybox, modules))
    shutil.rmtree(root / "kernel")
    shutil.rmtree(root / "usr/lib/modules")
    return version


def _take_xen(root: Path, target: Path) -> str | None:
    """Move Xen out of the root, where the recipe has installed it; returns its version."""
    packed = next((root / "boot").glob("xen-*.gz"), None)
    if packed is None:
        return None
    (target / "xen").write_bytes(gzip.decompress(packed.read_bytes()))
    packed.unlink()
    return packed.name.split("-")[1]


def _load_order(recipe: Recipe, folder: Path) -> list[tuple[str, bytes]]:
    """The modules of the recipe and what they depend on, each after what it needs."""
    needs: dict[str, list[str]] = {}
    for line in (folder / "modules.dep").read_text().splitlines():
        module, _, rest = line.partition(":")
        needs[module] = rest.split()
    by_name = {_module_name(path): path for path in needs}
    builtin = {_module_name(p) for p in (folder / "modules.builtin").read_text().split()}
    ordered: list[str] = []

    def add(path: str) -> None:
        if path not in ordered:
            for other in needs[path]:
                add(other)
            ordered.append(path)

    for name in (m.replace("-", "_") for m in (*OPTIONAL_MODULES, *recipe.modules)):
        if name in by_name:
            add(by_name[name])
        elif name not in builtin and name not in OPTIONAL_MODULES:
            raise LabError(f"the guests' kernel has no module {name} ({folder.name})")
    return [(f"{_module_name(path)}.ko", _module_data(folder / path)) for path in ordered]


def _module_name(path: str) -> str:
    return Path(path).name.partition(".")[0].replace("-", "_")


def _module_data(path: Path) -> bytes:
    data = path.read_bytes()
    return _decompressed(data) or data


def _unpacked_kernel(kernel: bytes) -> bytes:
    """The ELF file inside a bzImage, or the bzImage if that cannot be told; QEMU boots both."""
    # Fields of the x86 boot protocol: sectors before the payload's base, its offset and length.
    sectors = kernel[0x1F1] or 4
    offset, length = struct.unpack_from("<II", kernel, 0x248)
    begin = (sectors + 1) * 512 + offset
    inner = _decompressed(kernel[begin : begin + length])
    return inner if inner is not None and inner.startswith(b"\x7fELF") else kernel


def _decompressed(data: bytes) -> bytes | None:
    """What xz or zstd have packed; None when it is neither, or not to be unpacked here."""
    if data.startswith(b"\xfd7zXZ\0"):
        # Not lzma.decompress(): a kernel's payload has its length behind the compressed data.
        return lzma.LZMADecompressor().decompress(data)
    if data.startswith(b"\x28\xb5\x2f\xfd") and shutil.which("zstd"):
        done = subprocess.run(["zstd", "-dcq"], input=data, capture_output=True)
        return done.stdout or None
    return None


def write_disk(root: Path, target: Path, label: str) -> None:
    """An ext4 file system with what is in `root`; no journal, for nobody writes to it."""
    used = int(_output(["du", "-sk", str(root)]).split()[0])
    # A quarter more, for inodes and the blocks that a file does not fill; holes take no space.
    size = used * 5 // 4 + 32768
    _output(
        ["mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-L", label]
        + ["-d", str(root), str(target), f"{size}k"]
    )


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except FileNotFoundError:
        raise MissingError(f"{command[0]} is not installed") from None
    except subprocess.CalledProcessError as error:
        raise LabError(f"{command[0]} failed", detail=error.stderr.strip()) from None
    return done.stdout


#: A change to any of these makes another image, so it must get another name.
_RECIPE_CODE = (_build, _install, _take_kernel, _take_xen, write_disk, initramfs.base)
