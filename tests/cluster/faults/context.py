"""Differences in the environment of a node's processes."""

from __future__ import annotations

import glob
import json
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from ..namespace import HOME, ClusterError
from ..node import Node
from .base import FaultUnavailable, edited
from .storage import own_copy_of_folder

__all__ = [
    "PYTHON",
    "extra_distribution",
    "extra_folder",
    "home_file",
    "left_over",
    "left_over_lock",
    "left_over_segment",
    "login_refused",
    "nccl_conf",
    "old_python",
    "other_version",
    "python_on",
    "session_variables",
]

#: Where `python_on` puts an interpreter.
PYTHON = "/srv/environment/bin/python3"


@contextmanager
def session_variables(*nodes: Node, **variables: str) -> Iterator[None]:
    """New ssh sessions on these nodes get the variables, as from /etc/environment."""
    for node in nodes:
        node.stop_sshd()
        node.start_sshd(variables)
    try:
        yield
    finally:
        for node in nodes:
            node.stop_sshd()
            node.start_sshd()


@contextmanager
def login_refused(node: Node, source: Node) -> Iterator[None]:
    """The node rejects logins from `source`, as with a deny list or a missing key."""
    node.stop_sshd()
    node.start_sshd(lines=f"DenyUsers root@{source.data_address} root@{source.management_address}\n")
    try:
        yield
    finally:
        node.stop_sshd()
        node.start_sshd()


@contextmanager
def nccl_conf(node: Node, text: str) -> Iterator[None]:
    """The node's /etc/nccl.conf has this text."""
    with edited(node, "/etc/nccl.conf", text):
        yield


@contextmanager
def home_file(node: Node, name: str, text: str) -> Iterator[None]:
    """A file in the home directory of the job's user on this node."""
    with edited(node, f"{HOME}/{name}", text):
        yield


@contextmanager
def python_on(nodes: Sequence[Node], program: str = sys.executable) -> Iterator[None]:
    """`PYTHON` runs `program` on these nodes; on the others it does not exist."""
    for node in nodes:
        node.write_text(PYTHON, f'#!/bin/sh\nexec {program} "$@"\n')
        node.must(["chmod", "755", PYTHON])
    try:
        yield
    finally:
        for node in nodes:
            node.must(["rm", "-rf", str(Path(PYTHON).parent.parent)])


def old_python() -> str:
    """An interpreter of this machine that is older than 3.8. Raises FaultUnavailable when there is none."""
    patterns = ("/usr/bin/python3.[67]", "/root/.pyenv/versions/3.[67].*/bin/python3", "/opt/*/bin/python3.[67]")
    for pattern in patterns:
        for found in sorted(glob.glob(pattern)):  # noqa: PTH207
            return found
    raise FaultUnavailable("no Python older than 3.8 is installed")


@contextmanager
def extra_folder(nodes: Sequence[Node], path: str, files: Mapping[str, str] | None = None) -> Iterator[None]:
    """Only these nodes have this folder below /srv, with these files."""
    for node in nodes:
        node.must(["mkdir", "-p", path])
        for name, text in (files or {}).items():
            node.write_text(f"{path}/{name}", text)
    try:
        yield
    finally:
        for node in nodes:
            node.must(["rm", "-rf", path])


@contextmanager
def other_version(node: Node, distribution: str, version: str) -> Iterator[None]:
    """The metadata of a package on this node gives another version; the package itself is the same."""
    found = metadata.distribution(distribution)
    folder = next(Path(str(found.locate_file(file))) for file in found.files or () if file.name == "METADATA").parent
    with own_copy_of_folder(node, str(folder)):
        other = folder.with_name(folder.name.replace(f"-{found.version}.", f"-{version}."))
        node.must(["mv", str(folder), str(other)])
        node.must(["sed", "-i", f"s/^Version: .*/Version: {version}/", str(other / "METADATA")])
        yield


@contextmanager
def extra_distribution(node: Node, name: str, version: str, *, commit: str = "") -> Iterator[None]:
    """This node's Python finds the metadata of an extra package, installed in place at `commit` if given."""
    folder = Path(str(metadata.distribution("pytest").locate_file(f"{name}-{version}.dist-info")))
    with own_copy_of_folder(node, str(folder)):
        node.must(["mkdir", str(folder)])
        node.must(["tee", str(folder / "METADATA")], input=f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        if commit:
            node.write_text(f"/srv/trees/{name}/.git/HEAD", f"{commit}\n")
            place = json.dumps({"url": f"file:///srv/trees/{name}", "dir_info": {"editable": True}})
            node.must(["tee", str(folder / "direct_url.json")], input=place)
        try:
            yield
        finally:
            node.must(["rm", "-rf", "/srv/trees"])


_EARLIER = """
import socket, sys, time
if len(sys.argv) > 1:
    listener = socket.create_server(("0.0.0.0", int(sys.argv[1])))
print("runs", flush=True)
time.sleep(3600)
"""


@contextmanager
def left_over(
    node: Node, script: str = "train.py", *, port: int = 0, stopped: bool = False, role: str = ""
) -> Iterator[None]:
    """A process of an earlier run, of the same user and script, still runs, and may listen on a port or be stopped."""
    path = f"/srv/earlier/{script}"
    node.write_text(path, _EARLIER)
    command = [sys.executable, path, *([str(port)] if port else [])]
    with node.popen(command, env={"TRAINING_ROLE": role} if role else None) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            if process.stdout.readline() != "runs\n":
                raise ClusterError(f"{path} on {node.name}: {process.stderr.read().strip()}")
            if stopped:
                process.send_signal(signal.SIGSTOP)
            yield
        finally:
            # SIGKILL also ends stopped processes.
            process.send_signal(signal.SIGKILL)
            process.kill_session()
            node.must(["rm", "-rf", "/srv/earlier"])


@contextmanager
def left_over_lock(node: Node, extension: str = "fused_adam") -> Iterator[None]:
    """A build of a torch extension was killed two hours ago, and its lock stayed."""
    folder = f"{HOME}/.cache/torch_extensions"
    try:
        node.must(["mkdir", "-p", f"{folder}/py311_cpu/{extension}"])
        node.must(["touch", "-d", "2 hours ago", f"{folder}/py311_cpu/{extension}/lock"])
        yield
    finally:
        node.must(["rm", "-rf", folder])


@contextmanager
def left_over_segment(node: Node, size_bytes: int) -> Iterator[None]:
    """A killed run of torch left a segment in shared memory two hours ago."""
    path = "/dev/shm/torch_4000000_1234_0"
    try:
        node.must(["fallocate", "-l", str(size_bytes), path])
        node.must(["touch", "-d", "2 hours ago", path])
        yield
    finally:
        node.must(["rm", "-f", path])
