"""A server with one worker whose frames the test chooses."""

from __future__ import annotations

import secrets
import socket
import threading
from typing import Any

from reference_trainer.ps import frames
from reference_trainer.ps import settings as told_settings
from reference_trainer.ps.connection import ConnectionHandler
from reference_trainer.ps.frames import Channel, Header, PeerError
from reference_trainer.ps.server_state import ConnectedWorker, ServerState
from reference_trainer.ps.settings import ProcessFault

MODEL = {"dense": [["a", [64]]], "tables": [["t", 10, 4]]}


def connected(buffer_bytes: int = 0) -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection over loopback, with buffers of this size if given."""
    with socket.socket() as listener:
        if buffer_bytes:
            for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                listener.setsockopt(socket.SOL_SOCKET, option, buffer_bytes)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        ours = socket.create_connection(listener.getsockname())
        return ours, listener.accept()[0]


class ScriptedWorker:
    """A server with one worker, whose frames the test chooses."""

    def __init__(
        self,
        mode: str = "async",
        *,
        model: dict[str, Any] = MODEL,
        spares: int = 0,
        workers: int = 1,
        buffer_bytes: int = 0,
    ) -> None:
        import torch

        params = {
            "rank": 0,
            "index": 0,
            "servers": 1,
            "workers": workers,
            "server_endpoints": ["127.0.0.1:1"],
            "endpoint": "127.0.0.1:1",
            "mode": mode,
            "model": model,
            "spares": spares,
            "secret": secrets.token_hex(32),
            "timeout_s": 10,
        }
        self.host = ServerState(told_settings.read(params, "server"), ProcessFault({}, role="server", index=0))
        self.host.prepare(torch.device("cpu"))
        self.raw, connection = connected(buffer_bytes)
        self.channel = Channel(self.raw, peer="the server", limit_s=10)
        worker = ConnectedWorker(
            Channel(connection, peer="worker 0", limit_s=10), {"index": 0, "host": "node-b", "pid": 7}
        )
        self.host.peers[0] = worker
        self.host.clocks.phase = told_settings.TRAINING
        self.worker = worker
        self._thread = threading.Thread(target=ConnectionHandler(self.host, worker).run)
        self._thread.start()

    def send(self, header: Header, payload: bytes = b"") -> None:
        """Send one frame with any payload."""
        self.channel.send(header, *([memoryview(payload)] if payload else []))

    def ends(self) -> str:
        """The server's last message."""
        try:
            header = self.channel.receive()
            return f"{header.name}"
        except PeerError as error:
            return error.text
        finally:
            self.close()

    def leave(self) -> None:
        """Sign off; earlier requests are processed when this returns."""
        self.send(Header(frames.BYE))
        self.close()

    def close(self) -> None:
        """Close the connection, and wait for the server's thread."""
        self.channel.shut()
        self._thread.join(20)
        assert not self._thread.is_alive()
        self.channel.close()
