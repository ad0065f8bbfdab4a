"""The part `fabtests`: libfabric's own tests through the provider, on this host."""

from __future__ import annotations

from .. import paths
from ..errors import MissingError
from ..fabtests import check, sets, source
from ..fabtests.runner import NOT_RUN, PASSED
from .part import Run, SkipPart


def quick(run: Run) -> None:
    """The quick set, that is all but the long benchmarks; each "not run" needs its reason."""
    if not (paths.provider() / "libivc-fi.so").exists():
        raise SkipPart("libivc-fi.so is not built (package libfabric-dev, then ./run build)")
    try:
        found = source.find(run.log)
    except MissingError as error:
        raise SkipPart(str(error)) from error
    run.log(f"fabtests {found.version} from {found.origin}: {found.folder}")

    def tell(verdict: check.Verdict) -> None:
        run.log(verdict.result.said)
        what = verdict.result.test.line
        for case, why in verdict.left_out:
            run.log(f"NOT RUN a case of {what}: {case}: {why}")
        if verdict.outcome == PASSED:
            run.passed(what)
        elif verdict.outcome == NOT_RUN:
            run.skipped(what, verdict.why)
        else:
            run.failed(f"{what}: {verdict.why}", verdict.result.said)

    check.run(found, sets.read(found.script, sets.QUICK), tell=tell)
