"""Parts about the host tool and the manual: its Python tests, the man pages."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

from .. import manpages, paths
from ..errors import IvcError
from .part import Run, SkipPart

#: Tests that bring guests up: the parts `uml` and `qemu` do that. Xen's take an image of their own.
_SLOW = ("test_lab_uml.py", "test_lab_qemu.py", "test_lab_xen.py")


def host(run: Run) -> None:
    """The Python tests that need no guests."""
    folder = paths.project() / "host"
    with tempfile.TemporaryDirectory(prefix="ivc-test-") as scratch:
        report = Path(scratch) / "report.xml"
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short"]
        words += [f"--ignore={folder / 'tests' / name}" for name in _SLOW]
        done = run.program([*words, f"--junitxml={report}", "tests"], timeout=900, cwd=folder)
        if not report.exists():
            run.failed(f"pytest ended with {done.returncode}", done.stdout)
            return
        _count(run, ElementTree.parse(report))


def _count(run: Run, report: ElementTree.ElementTree) -> None:
    for case in report.iter("testcase"):
        name = f"{case.get('classname', '').removeprefix('tests.')}: {case.get('name')}"
        bad = case.find("failure")
        if bad is None:
            bad = case.find("error")
        skip = case.find("skipped")
        if bad is not None:
            run.failed(name, bad.text or "")
        elif skip is not None:
            run.skipped(name, skip.get("message", ""))
        else:
            run.passed(name)


def man(run: Run) -> None:
    """Every man page: its form, its completeness, its examples."""
    if shutil.which("mandoc") is None:
        raise SkipPart("mandoc is not installed (package mandoc)")
    try:
        manpages.check_complete()
        run.passed("every call has a page")
    except IvcError as error:
        run.failed("every call has a page", str(error))
    for page in manpages.pages():
        try:
            manpages.check_page(page)
            run.passed(page.name)
        except subprocess.TimeoutExpired as error:
            run.failed(page.name, str(error))
        except IvcError as error:
            run.failed(page.name, f"{error}\n{error.detail or ''}")
