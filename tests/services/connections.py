"""What a client sees of its connection."""

from __future__ import annotations

import socket


def ends(connection: socket.socket) -> bool:
    """Whether the server ends a connection on which it sends nothing; a TimeoutError if it does neither."""
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        raise
    except OSError:
        return True
