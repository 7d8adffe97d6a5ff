"""Shared parts of the faults."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.cluster.namespace import ClusterError
from tests.cluster.node import Node


class FaultUnavailable(ClusterError):
    """This machine cannot produce the fault; the message says what it lacks."""


@contextmanager
def edited(node: Node, inside: str, text: str) -> Iterator[None]:
    """Replace the text of one of the node's own files, in place, so that bind mounts still see it."""
    before = node.read_text(inside) if node.path(inside).exists() else None
    try:
        node.write_text(inside, text)
        yield
    finally:
        if before is None:
            node.path(inside).unlink()
        else:
            node.write_text(inside, before)
