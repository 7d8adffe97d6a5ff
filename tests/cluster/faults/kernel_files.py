"""Faults in files of /sys or /proc on one node."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

from ..node import Node
from .base import FaultUnavailable

__all__ = ["kernel_file"]

_numbers = itertools.count(1)


@contextmanager
def kernel_file(node: Node, path: str, text: str) -> Iterator[None]:
    """On this node the file at `path`, below /sys or /proc, reads `text`; the kernel is unchanged."""
    if not path.startswith(("/sys/", "/proc/")):
        raise ValueError(f"{path} is no file of the kernel's; use faults.file_content")
    if node.run(["test", "-e", path]).returncode != 0:
        raise FaultUnavailable(f"this kernel has no {path}")
    instead = f"/run/faults/kernel-{next(_numbers)}"
    node.must(["mkdir", "-p", "/run/faults"])
    node.write_text(instead, text)
    node.must(["mount", "--bind", instead, path])
    try:
        yield
    finally:
        node.must(["umount", "-l", path])
        node.must(["rm", "-f", instead])
