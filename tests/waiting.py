"""Waiting for something to happen: the only places where a test in this process sleeps or looks at a clock.

The limit ends a test that would wait forever. It says nothing about how fast anything should be.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import anyio

LIMIT_S = 60.0
_POLL_S = 0.02

T = TypeVar("T")


def until(condition: Callable[[], T], *, within_s: float = LIMIT_S) -> T:
    """The first true value of `condition`.

    Raises:
        TimeoutError: it stayed false; the message holds its last value.
    """
    ends = time.monotonic() + within_s
    while not (value := condition()):
        if time.monotonic() > ends:
            raise TimeoutError(f"the condition was still {value!r} after {within_s:g} s")
        time.sleep(_POLL_S)
    return value


async def becomes(condition: Callable[[], T], *, within_s: float = LIMIT_S) -> T:
    """The same in an event loop, which goes on meanwhile.

    Raises:
        TimeoutError: it stayed false.
    """
    with anyio.fail_after(within_s):
        while not (value := condition()):
            await anyio.sleep(_POLL_S)
        return value
