"""The check of the man pages: each is clean mdoc, and what it shows works.

- mandoc finds nothing to warn about, and every link (`.so`) leads to a page.
- Every exported call of the library has a page in section 3, and every page there a program.
- Each complete program under EXAMPLES is compiled without warnings and run on a fresh region; where
  "It prints:" follows, with exactly that output.
- Each command line under EXAMPLES of `ivc_info` and `ivc region` runs; of other `ivc` commands the
  options are looked up in `--help`, because a page must not start virtual machines.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from . import paths
from .errors import IvcError, MissingError

_RUN_SECONDS = 30
_REGION_SIZE = 16 << 20
_ESCAPES = {r"\e": "\\", r"\&": "", r"\-": "-", r"\(dq": '"', r"\(aq": "'"}


class ManError(IvcError):
    """A man page is not as it should be."""


@dataclass
class Page:
    path: Path
    name: str
    section: str
    programs: list[str] = field(default_factory=list)
    outputs: list[str | None] = field(default_factory=list)  # one per program
    commands: list[str] = field(default_factory=list)


def folder() -> Path:
    return paths.project() / "docs" / "man"


def _unescape(line: str) -> str:
    return re.sub(r"\\e|\\&|\\-|\\\(dq|\\\(aq", lambda found: _ESCAPES[found[0]], line)


def _literal_blocks(text: str) -> list[tuple[str, str]]:
    """The literal displays of EXAMPLES, each with the line of text before it."""
    section = re.search(r"^\.Sh EXAMPLES\n(.*?)(?=^\.Sh |\Z)", text, re.M | re.S)
    blocks = []
    for found in re.finditer(
        r"^(?P<before>.*)\n\.Bd -literal.*\n(?P<body>(?:.*\n)*?)\.Ed$",
        "\n" + section[1] if section else "",
        re.M,
    ):
        body = "\n".join(_unescape(line) for line in found["body"].splitlines()) + "\n"
        blocks.append((found["before"], body))
    return blocks


def read(path: Path) -> Page:
    """A page and what it shows."""
    page = Page(path, path.stem, path.suffix[1:])
    for before, body in _literal_blocks(path.read_text()):
        if "int main(" in body:
            page.programs.append(body)
            page.outputs.append(None)
        elif before.startswith("It prints:") and page.outputs:
            page.outputs[-1] = body
        page.commands += [line[2:] for line in body.splitlines() if line.startswith("$ ")]
    return page


def lint(path: Path) -> None:
    if not shutil.which("mandoc"):
        raise MissingError("mandoc: not installed", hint="apt-get install mandoc")
    first = path.read_text().split("\n", 1)[0]
    if first.startswith(".so "):
        target = folder() / Path(first[4:].strip()).name
        if not target.exists():
            raise ManError(f"{path.name}: links to {target.name}, which does not exist")
        return
    done = subprocess.run(
        ["mandoc", "-T", "lint", "-W", "warning", path], capture_output=True, text=True
    )
    if done.returncode != 0 or done.stdout:
        raise ManError(f"{path.name}: mandoc objects", detail=done.stdout.strip())


def _compile(page: Page, program: str, target: Path) -> None:
    source = target.with_suffix(".c")
    source.write_text(program)
    library = paths.build() / "adapters" / "c"
    done = subprocess.run(
        ["cc", "-std=c11", "-D_DEFAULT_SOURCE", "-Wall", "-Wextra", "-Werror"]
        + [f"-I{paths.project() / 'include'}", str(source), "-o", str(target)]
        + [f"-L{library}", "-livc", f"-Wl,-rpath,{library}"],
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise ManError(f"{page.path.name}: its example does not compile", detail=done.stderr)


def _environment(region: Path) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("IVC_")}
    tools = [str(paths.build() / "tools"), str(Path(sys.executable).parent)]
    return {
        **clean,
        "IVC_REGION": str(region),
        "PATH": ":".join([*tools, clean.get("PATH", "/usr/bin:/bin")]),
    }


def _region(where: Path) -> Path:
    region = where / "region"
    with open(region, "wb") as file:
        file.truncate(_REGION_SIZE)
    return region


def _run_program(page: Page, number: int) -> None:
    with tempfile.TemporaryDirectory(prefix="ivc-man-", dir="/dev/shm") as name:
        where = Path(name)
        target = where / page.name
        _compile(page, page.programs[number], target)
        done = _run([str(target)], where)
    if done.returncode != 0:
        raise ManError(
            f"{page.path.name}: its example ends with {done.returncode}",
            detail=done.stdout + done.stderr,
        )
    expected = page.outputs[number]
    if expected is not None and done.stdout != expected:
        raise ManError(
            f"{page.path.name}: its example prints something else than the page says",
            detail=f"page:\n{expected}program:\n{done.stdout}",
        )


def _run(command: list[str], where: Path) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            cwd=where,
            env=_environment(_region(where)),
            capture_output=True,
            text=True,
            timeout=_RUN_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise ManError(f"{command[0]}: did not end within {_RUN_SECONDS} s") from None


def _run_command(page: Page, line: str) -> None:
    with tempfile.TemporaryDirectory(prefix="ivc-man-", dir="/dev/shm") as name:
        done = _run(["sh", "-ec", line], Path(name))
    if done.returncode != 0:
        raise ManError(
            f"{page.path.name}: '{line}' ends with {done.returncode}",
            detail=done.stdout + done.stderr,
        )


def _look_up(page: Page, line: str) -> None:
    """The command exists and its help knows the options."""
    words = shlex.split(line)
    words = words[: words.index("--")] if "--" in words else words  # then comes another's command
    known = [word for word in words if re.fullmatch(r"[a-z]+", word)]
    nested = known[1:2] in (["lab"], ["bench"], ["env"], ["guard"], ["demo"], ["profile"])
    command = known[:3] if nested else known[:2]
    done = subprocess.run(
        [sys.executable, "-m", "ivc_host", *command[1:], "--help"],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
        timeout=_RUN_SECONDS,
    )
    passed_on = "mpirun" in command or "ssh" in command
    for word in words if not passed_on else []:
        if word.startswith("--") and word.split("=")[0] not in done.stdout:
            raise ManError(f"{page.path.name}: '{line}': no option {word}")
    if done.returncode != 0 and not passed_on:
        raise ManError(f"{page.path.name}: '{line}': no such command", detail=done.stderr)


def check_page(path: Path) -> None:
    lint(path)
    page = read(path)
    for number in range(len(page.programs)):
        _run_program(page, number)
    for line in page.commands:
        if re.match(r"ivc (?!region)", line):
            _look_up(page, line)
        else:
            _run_command(page, line)


def check_complete() -> None:
    """Every exported call has a page; every page of section 3 has a program."""
    exported = (paths.project() / "adapters" / "c" / "libivc.map").read_text()
    exported = exported.split("IVC_PRIVATE")[0]  # for our own libraries
    for call in re.findall(r"^\s+(ivc_\w+);", exported, re.M):
        path = folder() / f"{call}.3"
        if not path.exists():
            raise ManError(f"{call}: no man page", hint=f"write docs/man/{call}.3")
        text = path.read_text()
        if not text.startswith(".so ") and not read(path).programs:
            raise ManError(f"{path.name}: shows no program")
        target = folder() / text.split()[1].split("/")[-1] if text.startswith(".so ") else path
        if f".Nm {call}" not in target.read_text():
            raise ManError(f"{target.name}: does not name {call}")


def pages() -> list[Path]:
    return sorted(p for p in folder().iterdir() if re.fullmatch(r"\.[1-9]", p.suffix))


def check_all(say: Callable[[str], None] = print) -> int:
    """Checks everything; returns how many pages. The first fault raises ManError."""
    check_complete()
    found = pages()
    for path in found:
        check_page(path)
        say(f"{path.name}: good")
    return len(found)


if __name__ == "__main__":
    from .__main__ import _report

    try:
        check_all()
    except IvcError as error:
        sys.exit(_report(error))
