"""Reading descriptors without blocking the agent."""

from __future__ import annotations

import os
import selectors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

CHUNK_BYTES = 65536


def read(fd: int) -> Optional[bytes]:
    """The available data; empty at the end, None when there is nothing yet."""
    try:
        return os.read(fd, CHUNK_BYTES)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def readable(fd: int) -> bool:
    """Whether `read` would return something, including the end."""
    with selectors.SelectSelector() if fd < 1024 else selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        return bool(selector.select(0))
