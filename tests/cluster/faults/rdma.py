"""Simulated RDMA devices: their folder below /sys/class is generated."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from ..node import Node
from ..rdma import Hca, files_of

__all__ = ["rdma_devices"]

_numbers = itertools.count(1)


@contextmanager
def rdma_devices(nodes: Sequence[Node], devices: Sequence[Hca], *, opened: bool = True) -> Iterator[None]:
    """The nodes show these devices in /sys/class/infiniband. They carry nothing.

    Without `opened` they have no device nodes in /dev, as in a container without devices.
    """
    with ExitStack() as undo:
        for node in nodes:
            undo.enter_context(_tree(node, files_of(devices), opened=opened))
        yield


@contextmanager
def _tree(node: Node, files: Mapping[str, str], *, opened: bool) -> Iterator[None]:
    """Build a class folder in memory with the kernel's classes and this one, and a /dev with verbs devices that are
    copies of /dev/null.
    """
    kept = f"/run/faults/classes-{next(_numbers)}"
    made = f"{kept}-made"
    node.must(["mkdir", "-p", kept, f"{made}/sys", f"{made}/upper/infiniband", f"{made}/work", f"{made}/shm"])
    for name, text in files.items():
        node.write_text(f"{made}/sys/{name}", text)
    count = len({name.split("/")[0] for name in files}) if opened else 0
    numbers = " ".join(str(index) for index in range(count))
    classes = f"""
        for class in {kept}/class/*; do
            name=${{class##*/}}
            [ "$name" = infiniband ] || [ "$name" = net ] || ln -s "$class" "/sys/class/$name"
        done
        mkdir /sys/class/net /sys/class/infiniband
        mount --bind {kept}/class/net /sys/class/net
        mount --bind {made}/sys /sys/class/infiniband
    """
    devices = f"""
        for number in {numbers}; do mknod {made}/upper/infiniband/uverbs$number c 1 3; done
        mount --bind /dev/shm {made}/shm
        mount -t overlay -o lowerdir=/dev,upperdir={made}/upper,workdir={made}/work devices /dev
    """

    def step(*words: str) -> None:
        node.must([*words])

    with ExitStack() as undo:
        undo.callback(step, "rm", "-rf", made, kept)
        # Lazily and recursively: programs may still use it.
        step("mount", "--rbind", "/sys", kept)
        undo.callback(step, "umount", "-R", "-l", kept)
        step("mount", "-t", "tmpfs", "classes", "/sys/class")
        undo.callback(step, "umount", "-R", "-l", "/sys/class")
        step("sh", "-e", "-c", classes)
        step("sh", "-e", "-c", devices)
        undo.callback(step, "umount", "-R", "-l", "/dev")
        step("mount", "--move", f"{made}/shm", "/dev/shm")
        yield
