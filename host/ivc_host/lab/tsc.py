"""How fast this processor's time stamp counter counts.

A guest whose processor is emulated reads the host's counter, and finds its rate at boot by comparing
it with an emulated timer. On a busy host that timer comes late: guests were seen whose clock ran
3.6 times too fast. So they are told.
"""

from __future__ import annotations

import ctypes
import mmap
import time
from functools import cache

#: rdtsc; shl $32,%rdx; or %rdx,%rax; ret
_CODE = bytes.fromhex("0f31 48c1e220 4809d0 c3")
#: Long enough for a part in ten thousand; the guest refines it over its first seconds.
_SECONDS = 0.1


@cache
def khz() -> int | None:
    """In kHz; None where code cannot be mapped, and the guest then has to measure."""
    try:
        page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except OSError:
        return None  # a security module forbids it
    page.write(_CODE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    read = ctypes.CFUNCTYPE(ctypes.c_uint64)(address)
    read()
    begin, first = time.monotonic_ns(), read()
    time.sleep(_SECONDS)
    end, last = time.monotonic_ns(), read()
    return int((last - first) * 1_000_000 // (end - begin))
