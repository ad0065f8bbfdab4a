"""The check of the man pages must find what is wrong with a page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from ivc_host import cli, manpages, paths
from ivc_host.manpages import ManError

PAGE = manpages.folder() / "ivc_version.3"

needs_library = pytest.mark.skipif(
    not (paths.build() / "adapters" / "c" / "libivc.so").exists(), reason="libivc is not built"
)


def changed(tmp_path: Path, old: str, new: str) -> Path:
    text = PAGE.read_text()
    assert old in text
    path = tmp_path / PAGE.name
    path.write_text(text.replace(old, new))
    return path


def test_every_call_has_a_page() -> None:
    manpages.check_complete()


@needs_library
def test_a_good_page_passes() -> None:
    manpages.check_page(PAGE)


def test_bad_mdoc_is_found(tmp_path: Path) -> None:
    with pytest.raises(ManError, match="mandoc objects"):
        manpages.check_page(changed(tmp_path, ".Sh RETURN VALUES", ".Sh RETURN VALUES\n.Xx"))


@needs_library
def test_a_program_that_does_not_compile_is_found(tmp_path: Path) -> None:
    with pytest.raises(ManError, match="does not compile"):
        manpages.check_page(changed(tmp_path, "ivc_version()", "ivc_vershun()"))


@needs_library
def test_a_program_that_fails_is_found(tmp_path: Path) -> None:
    with pytest.raises(ManError, match="ends with 1"):
        manpages.check_page(changed(tmp_path, "return 0;", "return 1;"))


@needs_library
def test_another_output_is_found(tmp_path: Path) -> None:
    path = changed(
        tmp_path,
        ".Bd -literal\nheader and library agree\n",
        ".Bd -literal\nheader and library quarrel\n",
    )
    with pytest.raises(ManError, match="prints something else"):
        manpages.check_page(path)


def test_an_unknown_option_is_found(tmp_path: Path) -> None:
    path = tmp_path / "ivc.1"
    text = (manpages.folder() / "ivc.1").read_text()
    path.write_text(text.replace("gate --quick", "gate --slow"))
    page = manpages.read(path)
    (line,) = [line for line in page.commands if "--slow" in line]
    with pytest.raises(ManError, match="no option --slow"):
        manpages._look_up(page, line)


def sources(*folders: str) -> Iterator[Path]:
    for name in folders:
        for path in (paths.project() / name).rglob("*.[ch]" if name != "host" else "*.py"):
            if not path.name.startswith("test-") and "tests" not in path.parts:
                yield path


def variables_read() -> set[str]:
    """Environment variables of ours that programs of ours ask for."""
    c = re.compile(r'(?:getenv|ivc_env_\w+)\(\s*"(IVC_\w+)"')
    python = re.compile(r'(?:environ(?:\.get\(|\[)|getenv\()\s*"(IVC_\w+)"')
    found = {name for path in sources("src", "adapters", "tools") for name in c.findall(path.read_text())}
    return found | {name for path in sources("host") for name in python.findall(path.read_text())}


def test_every_variable_that_is_read_is_documented() -> None:
    pages = "\n".join(page.read_text() for page in manpages.pages())
    of_tests = "\n".join(page.read_text() for page in (paths.project() / "docs").glob("*.md"))
    read = variables_read()
    assert {"IVC_REGION", "IVC_CACHE"} <= read
    for name in read:
        place = of_tests if name.startswith("IVC_TEST_") or name == "IVC_MODEL" else pages
        assert re.search(rf"\b{name}\b", place), f"{name} is read and not documented"


def test_every_variable_in_a_man_page_is_read() -> None:
    read = variables_read()
    for page in manpages.pages():
        for name in re.findall(r"^\.(?:It )?Ev (IVC_\w+)", page.read_text(), re.M):
            assert name in read, f"{page.name}: nobody reads {name}"


def test_every_parameter_of_the_plugin_is_documented() -> None:
    source = (paths.project() / "adapters" / "openmpi" / "btl_ivc_component.c").read_text()
    names = re.findall(r'(?:register_\w+\(|btl_version, )"(\w+)"', source)
    rows = re.findall(r"^\| `(\w+)`(?:, `(\w+)`)? \|", (paths.project() / "docs" / "openmpi.md").read_text(), re.M)
    documented = {name for row in rows for name in row}
    assert {"region", "free_list_max", "latency"} <= set(names)
    assert set(names) <= documented, set(names) - documented


def test_every_command_is_in_the_man_page() -> None:
    text = (manpages.folder() / "ivc.1").read_text()
    entries = "\n".join(re.findall(r"^\.It Cm .*", text, re.M))

    def check(command: object, words: list[str]) -> None:
        nested = getattr(command, "commands", {})
        for name, one in nested.items():
            if not one.hidden:
                check(one, [*words, name])
        if not nested:
            pattern = r"\b.*\b".join(words)
            assert re.search(rf"\b{pattern}\b", entries), f"ivc {' '.join(words)} is not in ivc(1)"

    check(typer.main.get_command(cli.app), [])
