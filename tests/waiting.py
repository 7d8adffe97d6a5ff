"""Waiting for something to happen: the only places where a test in this process sleeps or looks at a clock.

The limit ends a test that would wait forever. It says nothing about how fast anything should be.
"""

from __future__ import annotations

import functools
import subprocess
import time
from collections.abc import Callable
from typing import TypeVar

import anyio

LIMIT_S = 60.0
_POLL_S = 0.02
#: Five starts of a process take about so long on a quiet machine of two cores.
_QUIET_S = 0.02

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


@functools.cache
def slowness() -> float:
    """How much slower this machine starts processes than a quiet one does, from 1 to 40; measured once in a run."""
    began = time.monotonic()
    for _ in range(5):
        subprocess.run(["true"], check=True)
    return min(40.0, max(1.0, (time.monotonic() - began) / _QUIET_S))


def scaled(seconds: float) -> float:
    """A deadline for the product under test within which something must be able to happen on this machine."""
    return round(seconds * slowness(), 1)
