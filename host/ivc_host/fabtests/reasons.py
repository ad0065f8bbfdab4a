"""Why a test is not run against `ivc`: one reason for each, kept by hand.

Invariant, held by `check.py`: a test that is not run without a line here fails, and so does a line
here whose test did run. What stands here is therefore what the provider leaves out, no more.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Reason:
    #: Matches the start of a test's line, or "program: case" for a case inside a unit test.
    pattern: str
    text: str

    def explains(self, line: str) -> bool:
        return re.match(self.pattern, line) is not None


_MSG = "connected endpoints (FI_EP_MSG): ivc offers reliable datagrams (FI_EP_RDM) only"
_DGRAM = "unreliable datagrams (FI_EP_DGRAM): ivc offers reliable ones (FI_EP_RDM) only"
_NODE = "an address of ivc names a member of a region; it is not made of a node and a port"

REASONS = (
    Reason(r"fi_msg(?!_inject)", _MSG),
    Reason(r"fi_cm_data\b", _MSG),
    Reason(r"fi_\S+ .*-e msg\b", _MSG),
    Reason(r"fi_dgram", _DGRAM),
    Reason(r"fi_\S+ .*-e dgram\b", _DGRAM),
    Reason(r"fi_av_test\b", f"it makes addresses of its own (FI_SOCKADDR): {_NODE}"),
    Reason(r"fi_poll\b", f"this program cannot exchange addresses out of band: {_NODE}"),
    Reason(r"fi_rdm_rma_trigger\b", "triggered operations (FI_TRIGGER) are not offered"),
    Reason(r"fi_shared_ctx\b", "shared transmit and receive contexts are not offered"),
    Reason(r"fi_scalable_ep\b", "scalable endpoints are not offered"),
    Reason(r"fi_rdm_shared_av\b", "address vectors shared by processes are not offered"),
    Reason(r"fi_getinfo_test: getinfo_(no_hints[245]|src[24]|src_dest1)$", _NODE),
    Reason(
        r"fi_getinfo_test: getinfo_(bad_)?(raw|war|waw)_ordering\d$",
        "no order is promised among remote reads and writes (FI_ORDER_RAW, _WAR, _WAW)",
    ),
    Reason(
        r"fi_getinfo_test: getinfo_progress[24]$",
        "progress without calls (FI_PROGRESS_AUTO) is not offered",
    ),
)


def explain(line: str) -> Reason | None:
    """The first that explains it."""
    return next((reason for reason in REASONS if reason.explains(line)), None)
