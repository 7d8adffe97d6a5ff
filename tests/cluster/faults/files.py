"""Files, folders, disks and kernel files that differ on one node."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath

from tests.cluster.faults.base import FaultUnavailable
from tests.cluster.namespace import ClusterError
from tests.cluster.node import Node

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


# Folders of one node that are full, read-only, hung, or wrong.


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


# Faults in files of /sys or /proc on one node.


@contextmanager
def kernel_file(node: Node, path: str, text: str) -> Iterator[None]:
    """On this node the file at `path`, below /sys or /proc, reads `text`; the kernel is unchanged."""
    if not path.startswith(("/sys/", "/proc/")):
        raise ValueError(f"{path} is not a file of the kernel; use faults.file_content")
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
