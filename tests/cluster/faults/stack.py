"""Packages of the ranks' interpreter on a node: stub distributions with realistic metadata."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..namespace import ClusterError
from ..node import Node

__all__ = ["ENVIRONMENT", "LIBRARIES", "Torch", "installed", "management_tool", "shared_library"]

#: Their folder; a job that exports it as PYTHONPATH finds them first.
ENVIRONMENT = "/srv/environment"
#: A folder for a job's LD_LIBRARY_PATH.
LIBRARIES = "/srv/libraries"
_TOOLS = "/run/tools"


@dataclass(frozen=True)
class Torch:
    """A torch as its wheel describes itself: version, CUDA it was built for, architectures, and what it requires."""

    version: str = "2.7.1"
    cuda: str | None = "12.6"
    architectures: Sequence[str] = ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")
    requires: Sequence[str] = ("nvidia-cudnn-cu12==9.5.1.17", "nvidia-nccl-cu12==2.26.2")

    def files(self) -> dict[str, str]:
        """Path below the environment -> text."""
        said = {"__version__": f"{self.version}+cpu", "cuda": self.cuda, "git_version": f"a{self.version}"}
        tag = f"+cu{self.cuda.replace('.', '')}" if self.cuda else "+cpu"
        said["__version__"] = self.version + tag
        # As in the binary of a real wheel: the list is one string between zero bytes.
        flags = f"\0 {' '.join(self.architectures)}\0" if self.architectures else "\0"
        return {
            "torch/__init__.py": "raise ImportError('made up: it is to be read, not imported')\n",
            "torch/version.py": "".join(f"{name} = {value!r}\n" for name, value in said.items()),
            "torch/lib/libtorch_python.so": f"\x7fELF{flags}",
            **distribution("torch", f"{self.version}{tag}", self.requires),
        }


def distribution(name: str, version: str, requires: Sequence[str] = ()) -> dict[str, str]:
    """The metadata of an installed distribution."""
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {item}" for item in requires]
    return {f"{name.replace('-', '_')}-{version}.dist-info/METADATA": "\n".join(lines) + "\n"}


@contextmanager
def installed(
    nodes: Sequence[Node], torch: Torch | None = None, *, files: Mapping[str, str] | None = None
) -> Iterator[None]:
    """The nodes have only this torch and these `files` in `ENVIRONMENT`."""
    written = {**(torch.files() if torch is not None else {}), **(files or {})}
    before = [(node, node.path(ENVIRONMENT).exists()) for node in nodes]
    try:
        for node, there in before:
            if there:
                node.must(["mv", ENVIRONMENT, f"{ENVIRONMENT}.aside"])
            for name, text in written.items():
                node.write_text(f"{ENVIRONMENT}/{name}", text)
        yield
    finally:
        for node, there in before:
            node.must(["rm", "-rf", ENVIRONMENT])
            if there:
                node.must(["mv", f"{ENVIRONMENT}.aside", ENVIRONMENT])


@contextmanager
def shared_library(
    nodes: Sequence[Node], path: str, source: str, *, needs: Sequence[str] = (), run_path: str = ""
) -> Iterator[None]:
    """The nodes have a library of this C source at `path`, below /srv, which needs other libraries by name. `run_path`
    is its RPATH, as in torch's wheels.
    """
    name = Path(path).name
    with tempfile.TemporaryDirectory() as folder:
        stubs = []
        for need in needs:
            stub = Path(folder) / need
            _compile("int needed;", stub, f"-Wl,-soname,{need}")
            stubs.append(str(stub))
        made = Path(folder) / "made" / name
        made.parent.mkdir()
        options = [f"-Wl,-rpath,{run_path}", "-Wl,--disable-new-dtags"] if run_path else []
        _compile(source, made, f"-Wl,-soname,{name}", "-Wl,--no-as-needed", *stubs, *options)
        try:
            for node in nodes:
                node.must(["mkdir", "-p", str(Path(path).parent)])
                shutil.copy(made, node.path(path))
            yield
        finally:
            for node in nodes:
                node.must(["rm", "-f", path])


def _compile(source: str, path: Path, *options: str) -> None:
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-x", "none", "-o", str(path), *options]
    done = subprocess.run(command, input=source, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise ClusterError(f"{path.name} does not compile: {done.stderr}")


@contextmanager
def management_tool(node: Node, text: str, *, name: str = "nvidia-smi") -> Iterator[None]:
    """The node has this shell script as a vendor's tool, on the PATH of every login."""
    node.write_text(f"{_TOOLS}/{name}", f"#!/bin/sh\n{text}\n")
    node.must(["chmod", "755", f"{_TOOLS}/{name}"])
    path = node.must(["sh", "-c", "echo $PATH"]).strip()
    try:
        node.stop_sshd()
        node.start_sshd({"PATH": f"{_TOOLS}:{path}"})
        yield
    finally:
        node.stop_sshd()
        node.start_sshd()
        node.must(["rm", "-rf", _TOOLS])
