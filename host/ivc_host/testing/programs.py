"""Parts that run the C test programs of the build: unit, processes, badinput, sanitize."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import paths
from ..errors import MissingError
from .part import Run

#: Most of a test program's time is waiting for something to happen.
_AT_ONCE = 3


@dataclass(frozen=True)
class Program:
    """A test program as the build runs it."""

    command: list[str]
    env: dict[str, str]


def _introspect(build: Path, what: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        ["meson", "introspect", f"--{what}", str(build)], capture_output=True, text=True
    )
    if done.returncode != 0:
        raise MissingError(f"{build} is no build directory", hint="run: ./run build")
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def _tests(build: Path, *names: str) -> list[dict[str, Any]]:
    """The tests of some suites, as Meson describes them."""
    return [test for test in _introspect(build, "tests")
            if any(suite.split(":")[-1] in names for suite in test["suite"])]  # fmt: skip


def suite(build: Path, name: str) -> list[Program]:
    """The programs of a suite, as the build lists them."""
    tests = _tests(build, name)
    for test in tests:
        if not Path(test["cmd"][0]).exists():
            raise MissingError(f"{test['cmd'][0]} is not built", hint="run: ./run build")
    return [Program(test["cmd"], test["env"]) for test in tests]


def _targets(build: Path, *names: str) -> list[str]:
    """What the tests of some suites need, as ninja calls it."""
    needed = {target for test in _tests(build, *names) for target in test["depends"]}
    files = [file for target in _introspect(build, "targets") if target["id"] in needed
             for file in target["filename"]]  # fmt: skip
    return sorted(os.path.relpath(file, build) for file in files)


def run_programs(
    run: Run,
    programs: Sequence[Program],
    env: Mapping[str, str] | None = None,
    timeout: float = 600,
    prefix: str = "",
) -> None:
    # A region or tunable that the caller has set is not what these tests are about.
    clean = {name: "" for name in os.environ if name.startswith("IVC_")}

    def one(program: Program) -> None:
        done = run.program(program.command, {**clean, **program.env, **(env or {})}, timeout)
        executable, *arguments = program.command
        name = " ".join([Path(executable).name.removeprefix("test-"), *arguments])
        run.count(prefix + name, done)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for future in [pool.submit(one, program) for program in programs]:
            future.result()


def unit(run: Run) -> None:
    run_programs(run, suite(paths.build(), "unit"))


def processes(run: Run) -> None:
    run_programs(run, suite(paths.build(), "processes"))


def badinput(run: Run) -> None:
    run_programs(run, suite(paths.build(), "badinput"))


# A sanitizer that finds something ends the program: then the case has failed.
_ADDRESS = {
    "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0:exitcode=99:detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1:exitcode=99",
}
_THREAD = {"TSAN_OPTIONS": "halt_on_error=1:exitcode=99:second_deadlock_stack=1"}


def _sanitized_build(run: Run, directory: Path, sanitizers: str, *suites: str) -> bool:
    """Build what the tests of these suites need; without any, all."""
    if not (directory / "build.ninja").exists():
        shutil.rmtree(directory, ignore_errors=True)
        done = run.program(
            ["meson", "setup", str(directory), str(paths.project()), "--buildtype=debugoptimized",
             f"-Db_sanitize={sanitizers}", "-Db_lundef=false", "-Db_lto=false", "-Dopenmpi=disabled"]
        )  # fmt: skip
        if done.returncode != 0:
            run.failed(f"meson setup {directory.name}", done.stdout)
            return False
    words = ["nice", "ninja", "-C", str(directory), *_targets(directory, *suites)]
    done = run.program(words, timeout=1500)
    return run.check(f"build with {sanitizers}", done.returncode == 0, done.stdout)


def sanitize(run: Run) -> None:
    """The suites under AddressSanitizer and UBSan; threads under ThreadSanitizer."""
    address = paths.project() / "build-asan"
    if _sanitized_build(run, address, "address,undefined"):
        programs = [p for name in ("unit", "processes", "badinput") for p in suite(address, name)]
        # Programs that load a libfabric have its own leaks, and stacks into what it has unloaded.
        fabric = [p for p in programs if "FI_PROVIDER_PATH" in p.env]
        plain = [p for p in programs if p not in fabric]
        run_programs(run, plain, _ADDRESS, prefix="address: ")
        no_leaks = {"ASAN_OPTIONS": _ADDRESS["ASAN_OPTIONS"].replace("leaks=1", "leaks=0")}
        run_programs(run, fabric, {**_ADDRESS, **no_leaks}, prefix="address: ")
    thread = paths.project() / "build-tsan"
    if _sanitized_build(run, thread, "thread", "threads"):
        run_programs(run, suite(thread, "threads"), _THREAD, prefix="thread: ")
