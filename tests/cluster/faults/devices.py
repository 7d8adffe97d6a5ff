"""GPUs (answers of the stub NVML library), RDMA devices and installed packages that differ on one node."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.devices import CONFIGURATION, CUDA_LIBRARY, LIBRARY, Gpus, Hca, NvmlError, files_of
from tests.cluster.faults.base import FaultUnavailable, edited
from tests.cluster.namespace import ClusterError
from tests.cluster.node import Node

#: The duration of a hang: longer than any deadline.
_FOREVER_S = 600
_numbers = itertools.count(1)


@contextmanager
def gpu_config(node: Node, gpus: Gpus) -> Iterator[None]:
    """The node reports another driver or other devices; see `Gpus`."""
    _require_stub(node)
    with edited(node, CONFIGURATION, gpus.text(node.name)):
        yield


@contextmanager
def driver_version(node: Node, version: str, *, cuda: int | None = None) -> Iterator[None]:
    """The node has another driver and, if given, another CUDA driver version (12020 is 12.2)."""
    changes = {"driver": version} | ({} if cuda is None else {"cuda": str(cuda)})
    with _changed(node, changes), cuda_library(node, version):
        yield


@contextmanager
def cuda_library(node: Node, version: str | None, *, empty: bool = False) -> Iterator[None]:
    """The node's libcuda.so.1 has this version, is empty, or (None) does not exist."""
    _require_stub(node)
    aside = f"{CUDA_LIBRARY}.aside"
    node.must(["mv", CUDA_LIBRARY, aside])
    mine = CUDA_LIBRARY.replace(".1", f".{version}")
    try:
        if empty:
            node.must(["sh", "-c", f": > {CUDA_LIBRARY}"])
        elif version is not None:
            node.must(["sh", "-c", f"[ -e {mine} ] || cp -L {aside} {mine}; ln -s {mine} {CUDA_LIBRARY}"])
        yield
    finally:
        node.must(["mv", "-f", aside, CUDA_LIBRARY])


@contextmanager
def gpu_lost(node: Node, index: int) -> Iterator[None]:
    """Device `index` has fallen off the bus: it is counted, but every query of it fails."""
    with _changed(node, {f"gpu{index}.error": str(NvmlError.GPU_IS_LOST)}):
        yield


@contextmanager
def gpu_state(node: Node, index: int, **state: int | str) -> Iterator[None]:
    """Device `index` returns these values, by the keys of `stub_nvml.c`; `error:4` is an error code."""
    with _changed(node, {f"gpu{index}.{key}": str(value) for key, value in state.items()}):
        yield


@contextmanager
def gpu_wedged(node: Node, index: int, key: str) -> Iterator[None]:
    """The query for `key` of device `index` hangs in the driver."""
    with gpu_state(node, index, **{key: f"wedge:{_FOREVER_S}"}):
        yield


@contextmanager
def gpu_count(node: Node, count: int) -> Iterator[None]:
    """The node lists only the first `count` of its devices."""
    with _changed(node, {"count": str(count)}):
        yield


@contextmanager
def nvml_error(node: Node, code: int) -> Iterator[None]:
    """The initialisation of NVML fails with this nvmlReturn_t; see `NvmlError`."""
    with _changed(node, {"init_error": str(code)}):
        yield


@contextmanager
def nvml_wedged(node: Node) -> Iterator[None]:
    """NVML's initialisation hangs."""
    with _changed(node, {"init_error": f"wedge:{_FOREVER_S}"}):
        yield


@contextmanager
def nvml_absent(node: Node) -> Iterator[None]:
    """The node has no NVML library at all, as without a driver package."""
    _require_stub(node)
    aside = f"{LIBRARY}.aside"
    node.must(["mv", LIBRARY, aside])
    try:
        yield
    finally:
        node.must(["mv", aside, LIBRARY])


@contextmanager
def _changed(node: Node, changes: dict[str, str]) -> Iterator[None]:
    _require_stub(node)
    lines = node.read_text(CONFIGURATION).splitlines()
    kept = [line for line in lines if line.split("=")[0] not in changes]
    new = [f"{key}={value}" for key, value in changes.items()]
    with edited(node, CONFIGURATION, "\n".join([*kept, *new]) + "\n"):
        yield


def _require_stub(node: Node) -> None:
    if not node.path(CONFIGURATION).exists():
        raise FaultUnavailable(f"{node.name} has no virtual GPUs: Cluster(..., gpus=2)")


@contextmanager
def driver_files(node: Node, files: Mapping[str, str]) -> Iterator[None]:
    """On this node /proc/driver holds these files, as with drivers of further devices."""
    instead = f"/run/faults/drivers-{next(_numbers)}"
    for name, text in files.items():
        node.write_text(f"{instead}/{name}", text)
    node.must(["mount", "--bind", instead, "/proc/driver"])
    try:
        yield
    finally:
        node.must(["umount", "-l", "/proc/driver"])
        node.must(["rm", "-rf", instead])


# Simulated RDMA devices: their folder below /sys/class is generated.


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


# Packages of the ranks' interpreter on a node: stub distributions with realistic metadata.


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
