"""Files and folders that differ on one node."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath

from ..node import Node

__all__ = ["file_content", "full_disk", "missing_file", "own_copy_of_folder", "small_shm"]

_numbers = itertools.count(1)


@contextmanager
def missing_file(node: Node, path: str) -> Iterator[None]:
    """The file or folder does not exist on this node. The machine's own is not touched."""
    with own_copy_of_folder(node, path):
        node.must(["rm", "-r", "--", path])
        yield


@contextmanager
def file_content(node: Node, path: str, text: str) -> Iterator[None]:
    """The file has another text on this node, or exists only there."""
    with own_copy_of_folder(node, path):
        node.must(["tee", "--", path], input=text)
        yield


@contextmanager
def small_shm(node: Node, size_bytes: int) -> Iterator[None]:
    """`/dev/shm` has only this size; the kernel rounds up to whole pages."""
    with _resized(node, "/dev/shm", size_bytes):
        yield


@contextmanager
def full_disk(node: Node, folder: str = "/srv") -> Iterator[None]:
    """The memory file system at `folder` (`/srv`, `/tmp`, `/dev/shm`) has no room left."""
    used = int(node.must(["df", "--output=used", "-B1", folder]).split()[-1])
    # A size of zero would mean no limit, so one page is the minimum.
    size_bytes = max(used, 4096)
    with _resized(node, folder, size_bytes):
        filler = f"{folder}/.full-disk"
        node.run(["dd", "if=/dev/zero", f"of={filler}", "bs=4096", "count=1"])
        try:
            yield
        finally:
            node.must(["rm", "-f", filler])


@contextmanager
def _resized(node: Node, folder: str, size_bytes: int) -> Iterator[None]:
    total = node.must(["df", "--output=size", "-B1", folder]).split()[-1]
    try:
        node.must(["mount", "-o", f"remount,size={size_bytes}", folder])
        yield
    finally:
        node.must(["mount", "-o", f"remount,size={total}", folder])


@contextmanager
def own_copy_of_folder(node: Node, path: str) -> Iterator[None]:
    """Give the node a private copy of the folder of `path`, in memory."""
    folder = PurePosixPath(path).parent
    if not folder.is_absolute() or str(folder) in ("/", "/run") or set(str(folder)) & set(":,\\"):
        raise ValueError(f"{path}: expected an absolute path in a folder other than / and /run")
    layers = f"/run/faults/{next(_numbers)}"
    node.must(["mkdir", "-p", f"{layers}/upper", f"{layers}/work"])
    options = f"lowerdir={folder},upperdir={layers}/upper,workdir={layers}/work"
    node.must(["mount", "-t", "overlay", "-o", options, "fault", str(folder)])
    try:
        yield
    finally:
        # Lazily: a program may still use the folder.
        node.must(["umount", "-l", str(folder)])
        node.must(["rm", "-rf", layers])
