"""Lets a process live a moment longer after a C++ exception that nobody catches.

When a rank is lost, Paddle's Gloo throws in a place where C++ calls `std::terminate`, and the process aborts at once.
Whether its watch still names the lost rank would be chance.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any, List

_LIBRARY = "libstdc++.so.6"
#: `std::set_terminate(void (*)())` as compilers spell it.
_SET_TERMINATE = "_ZSt13set_terminatePFvvE"
_HANDLER = ctypes.CFUNCTYPE(None)
#: The handler in use, which must live as long as the process.
_kept: List[Any] = []


def delay_abort(seconds: float) -> bool:
    """Before `std::terminate` aborts this process, let its other threads run for `seconds`; they may end it.

    Returns False where the C++ library is not the shared one of GCC; the process then aborts as before.
    """
    try:
        set_terminate = getattr(ctypes.CDLL(_LIBRARY), _SET_TERMINATE)
    except (OSError, AttributeError):
        return False
    set_terminate.restype, set_terminate.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

    def wait() -> None:
        time.sleep(seconds)
        if former:
            _HANDLER(former)()  # prints the exception, and aborts

    handler = _HANDLER(wait)
    _kept.append(handler)
    former = set_terminate(ctypes.cast(handler, ctypes.c_void_p))
    return True
