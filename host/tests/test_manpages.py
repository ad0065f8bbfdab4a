"""The check of the man pages must find what is wrong with a page."""

from __future__ import annotations

from pathlib import Path

import pytest

from ivc_host import manpages, paths
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
