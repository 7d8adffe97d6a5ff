"""What an executor is, and what its channels carry."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from preflight.node.wire import UNAVAILABLE_KINDS
from preflight.recording import Node


class ExecutorError(Exception):
    """A node could not be reached, or its agent not be started.

    Args:
        kind: one of `preflight.node.wire.UNAVAILABLE_KINDS`.
        message: names the node, quotes what the transport said, and says what to do.
        detail: raw evidence, such as the end of standard error.
    """

    def __init__(self, kind: str, message: str, detail: str = "") -> None:
        super().__init__(message)
        if kind not in UNAVAILABLE_KINDS:
            raise ValueError(f"unknown kind of unavailability: {kind!r}")
        self.kind = kind
        self.message = message
        self.detail = detail


@runtime_checkable
class Channel(Protocol):
    """A duplex stream of bytes to one agent, which is already running and speaks frames."""

    @property
    def description(self) -> str:
        """How the node was reached, for messages: `ssh user@node2`."""
        ...

    async def send(self, data: bytes) -> None:
        """Write all of `data`. Raises ExecutorError(kind="unreachable") when the other end is gone."""
        ...

    async def receive(self) -> bytes:
        """The next bytes; empty at the end of the stream."""
        ...

    def abandon(self) -> None:
        """Give up on the other end, which is lost: end the transport without a word. `aclose` still follows."""
        ...

    async def aclose(self) -> None:
        """End the channel, and with it the agent and all it started. Never raises."""
        ...

    def last_words(self) -> str:
        """What the transport said on standard error (its end), for messages about a lost node."""
        ...


@runtime_checkable
class Executor(Protocol):
    """One way to reach nodes."""

    @property
    def name(self) -> str:
        """As `--on` takes it."""
        ...

    async def open(self, node: Node, *, deadline_s: float, bundle: bytes) -> Channel:
        """Start an agent on `node` from `bundle` (of `preflight.bundle.node_bundle`).

        Raises ExecutorError, at the latest after `deadline_s`.
        """
        ...

    async def aclose(self) -> None:
        """Give back what all channels shared. Called once, after the last of them is closed."""
        ...
