"""Runs mpi4py's own test suite on one rank and notes what each test did, whatever ends the run.

    mpiexec -n N python suite.py TESTS NOTES [--after TEST] [--exclude PATTERN] [--limit SECONDS]

Needs nothing but the suite and mpi4py: a guest runs it with the Python of the MPI under test. TESTS
is the suite's `test` folder; NOTES is a folder in which this rank appends to `rank-N` a line as
each thing happens, so that what is there is true when the process is killed in the next moment:

    start TEST          fail TEST REASON          skip TEST          end COUNT

A test that takes longer than the limit ends its process, and with it the job (also where the launcher
would go on waiting for what the test has spawned). The one who started the job then starts it again
behind that test.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import signal
import sys
import time
import unittest
from typing import Any

#: Seconds in which a launcher may see by itself that a rank has ended.
_GRACE = 20.0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="mpi4py's test suite, with notes")
    parser.add_argument("tests")
    parser.add_argument("notes")
    parser.add_argument("--after", default="")
    parser.add_argument("--exclude", action="append", default=[])
    parser.add_argument("--limit", type=float, default=60.0)
    return parser.parse_args()


class _Notes:
    """The file of this rank; one write per line, nothing is buffered."""

    def __init__(self, folder: str, rank: int) -> None:
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, f"rank-{rank}")
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def add(self, *words: str) -> None:
        line = " ".join(" ".join(words).split())
        os.write(self._file, line[:400].encode() + b"\n")


class _Result(unittest.TestResult):
    def __init__(self, notes: _Notes, limit: float) -> None:
        super().__init__()
        self._notes = notes
        self._limit = limit

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._notes.add("start", test.id())
        faulthandler.dump_traceback_later(self._limit, exit=True)

    def stopTest(self, test: unittest.TestCase) -> None:
        faulthandler.cancel_dump_traceback_later()
        super().stopTest(test)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        super().addSkip(test, reason)
        self._notes.add("skip", test.id())

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        super().addFailure(test, err)
        self._fail(test, err)

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        super().addError(test, err)
        self._fail(test, err)

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        super().addSubTest(test, subtest, err)
        if err is not None:
            self._fail(test, err)

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        super().addUnexpectedSuccess(test)
        self._notes.add("fail", test.id(), "an expected failure did not happen")

    def _fail(self, test: unittest.TestCase, err: Any) -> None:
        self._notes.add("fail", test.id(), f"{err[0].__name__}: {err[1]}")


def _flat(suite: Any) -> list[unittest.TestCase]:
    if isinstance(suite, unittest.TestCase):
        return [suite]
    return [test for part in suite for test in _flat(part)]


class _Runner:
    """What the suite's own start-up code calls with the tests that it has found."""

    options: argparse.Namespace

    def __init__(self, **ignored: object) -> None:
        del ignored

    def run(self, suite: unittest.TestSuite) -> unittest.TestResult:
        from mpi4py import MPI  # not before the suite has set it up

        tests = _flat(suite)
        names = [test.id() for test in tests]
        first = names.index(self.options.after) + 1 if self.options.after else 0
        notes = _Notes(self.options.notes, MPI.COMM_WORLD.Get_rank())
        result = _Result(notes, self.options.limit)
        unittest.TestSuite(tests[first:])(result)
        notes.add("end", str(result.testsRun))
        return result


def _watched() -> int:
    """Put a process beside this one, which ends the launcher when this one ends too early.

    Returns where to write a byte when it is not too early any more.
    """
    launcher = os.getppid()
    rank, says = os.pipe()
    if os.fork():
        os.close(rank)
        return says
    os.setsid()
    os.dup2(rank, 0)
    os.closerange(1, os.sysconf("SC_OPEN_MAX"))  # whoever waits for the rank's end must see it
    if not os.read(0, 1):
        time.sleep(_GRACE)
        try:
            os.kill(launcher, signal.SIGKILL)
        except ProcessLookupError:
            pass  # as it should be
    os._exit(0)


def main() -> None:
    _Runner.options = _options()
    says = _watched()
    sys.dont_write_bytecode = True
    sys.path.insert(0, _Runner.options.tests)
    from main import TestProgram  # type: ignore[import-not-found]  # the suite's

    # Numpy, where the system has it, would make this another suite on another machine.
    words = ["suite", "-q", "--no-builddir", "--no-numpy"]
    words += [word for pattern in _Runner.options.exclude for word in ("-x", pattern)]
    program = TestProgram(module=None, argv=words, testRunner=_Runner, exit=False)
    # A failed test is in the notes; the exit status says that the suite came to its end.
    del program
    os.write(says, b".")


if __name__ == "__main__":
    main()
