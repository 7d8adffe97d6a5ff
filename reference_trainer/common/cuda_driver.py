"""Opens NVIDIA's driver without the interpreter's lock.

torch holds the lock while it initialises CUDA, which takes seconds if many processes of a node do so at once. Meanwhile
no other thread runs: heartbeats stop, and a server does not answer workers that introduce themselves. Functions called
through ctypes release the lock. After them torch finds the driver and the device's context open, and is quick.
"""

from __future__ import annotations

import ctypes
from typing import Any, Optional

_LIBRARY = "libcuda.so.1"


def initialise() -> Optional[Any]:
    """Initialise the driver; returns its library, None if there is none. torch reports the errors, in its own call."""
    try:
        driver = ctypes.CDLL(_LIBRARY)
        driver.cuInit(0)
    except (OSError, AttributeError):
        return None
    return driver


def open_context(index: int) -> bool:
    """Open the context that all libraries of this process share on device `index`; whether it is open."""
    driver = initialise()
    if driver is None:
        return False
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuDeviceGet(ctypes.byref(device), index):
        return False
    return not driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
