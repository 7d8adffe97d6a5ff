"""Folders of one node that are full, read-only, hung, or wrong."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ..namespace import ClusterError
from ..node import Node
from .base import FaultUnavailable
from .storage import own_copy_of_folder

__all__ = [
    "closed_file",
    "dangling_link",
    "folder_instead",
    "hung_mount",
    "no_inodes",
    "read_only",
    "small_disk",
]

#: Mounts a file system in user space and never answers the kernel.
_NEVER_ANSWERS = """
import ctypes, os, sys
device = os.open("/dev/fuse", os.O_RDWR)
options = b"fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other" % device
libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(b"nas:/export", sys.argv[1].encode(), b"fuse", 0, options) != 0:
    sys.exit(os.strerror(ctypes.get_errno()))
print("mounted", flush=True)
sys.stdin.read()
"""


@contextmanager
def small_disk(node: Node, folder: str, size_bytes: int) -> Iterator[None]:
    """An empty file system of this size covers the folder, which is created if necessary."""
    with _covered(node, folder, ["-t", "tmpfs", "-o", f"size={size_bytes},mode=1777", "small"]):
        yield


@contextmanager
def no_inodes(node: Node, folder: str) -> Iterator[None]:
    """A file system with free bytes but no free inode covers the folder."""
    with _covered(node, folder, ["-t", "tmpfs", "-o", "size=64m,nr_inodes=2,mode=1777", "few"]):
        node.must(["sh", "-c", f"touch {folder}/last"])
        yield


@contextmanager
def read_only(node: Node, folder: str) -> Iterator[None]:
    """The folder is mounted read-only, as after an error of the disk."""
    with _covered(node, folder, ["--bind", folder]):
        node.must(["mount", "-o", "remount,bind,ro", folder])
        yield


@contextmanager
def hung_mount(node: Node, folder: str) -> Iterator[None]:
    """Access to the folder waits for a server that never answers; only SIGKILL ends it."""
    node.must(["mkdir", "-p", folder])
    command = [sys.executable, "-I", "-S", "-c", _NEVER_ANSWERS, folder]
    with node.popen(command, stdin=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None and server.stderr is not None
            if server.stdout.readline() != "mounted\n":
                raise FaultUnavailable(f"{folder} of {node.name}: {server.stderr.read().strip()}")
            yield
        finally:
            # Its end closes the device, which ends all waits; only then can it be unmounted.
            server.kill_session()
            node.run(["umount", "-l", folder])


@contextmanager
def dangling_link(node: Node, path: str) -> Iterator[None]:
    """A dangling link replaces the file or folder."""
    with own_copy_of_folder(node, path):
        node.must(["rm", "-rf", "--", path])
        node.must(["ln", "-s", "/srv/gone", path])
        yield


@contextmanager
def folder_instead(node: Node, path: str) -> Iterator[None]:
    """An empty folder replaces the file."""
    with own_copy_of_folder(node, path):
        node.must(["rm", "-rf", "--", path])
        node.must(["mkdir", path])
        yield


@contextmanager
def closed_file(node: Node, path: str) -> Iterator[None]:
    """The file or folder is unreadable, except for root with the capability."""
    with own_copy_of_folder(node, path):
        node.must(["chmod", "000", path])
        yield


@contextmanager
def _covered(node: Node, folder: str, mount: list[str]) -> Iterator[None]:
    node.must(["mkdir", "-p", folder])
    done = node.run(["mount", *mount, folder])
    if done.returncode != 0:
        raise ClusterError(f"{folder} of {node.name} cannot be covered: {done.stderr.strip()}")
    try:
        yield
    finally:
        node.must(["umount", "-l", folder])
