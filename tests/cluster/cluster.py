"""The virtual cluster: n nodes and a head on two networks, all in memory, removed at the end."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import selectors
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

from .devices import CONFIGURATION, CUDA_LIBRARY, LIBRARY, Gpu, Gpus, compile_library, library_folder
from .files import etc_files, home_files, hosts_text
from .namespace import HOME, ClusterError, Namespace
from .node import Node, Place, Surroundings

__all__ = ["Cluster"]

_DATA = ipaddress.IPv4Network("10.77.0.0/16")
_MANAGEMENT = ipaddress.IPv4Network("10.78.0.0/16")
_SHM_BYTES = 2**30
_STATE = "/run/cluster"


class Cluster:
    """`with Cluster(4) as cluster:` holds four nodes, `node1` to `node4`, and a head.

    Everything is launched from `cluster.head`, where plain `ssh node1` works. The file system is the machine's, except
    /etc (private changes), /run, /srv and /dev/shm everywhere and /tmp on the nodes; `shared` names folders under those
    to keep. `gpus` gives every node that many stub
    devices, or the given ones.

    Enter it in the main thread, or in one that outlives it. A process forked from the owner and
    never exec'ed keeps the cluster alive after the owner's death if the owner is another thread.
    """

    def __init__(
        self,
        n: int,
        names: Sequence[str] | None = None,
        *,
        gpus: int | Gpus = 0,
        mtu: int = 1500,
        shared: Sequence[Path] = (),
    ) -> None:
        chosen = list(names) if names is not None else [f"node{i + 1}" for i in range(n)]
        if len(chosen) != n or len(set(chosen)) != n or not 1 <= n <= 500:
            raise ValueError(f"expected 1 to 500 different names, one a node, got {n} and {chosen}")
        for name in chosen:
            if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", name) or name == "head":
                raise ValueError(f"{name!r} cannot be the host name of a node")
        self._places = [
            Place(name, "node", index, str(_DATA[index]), str(_MANAGEMENT[index]))
            for index, name in enumerate(chosen, start=1)
        ]
        self._places.append(Place("head", "head", 0, str(_DATA[-2]), str(_MANAGEMENT[-2])))
        self.gpus = Gpus((Gpu(),) * gpus) if isinstance(gpus, int) else gpus
        self._mtu = mtu
        self._shared = _paths_to_keep(shared)
        self._carrier: subprocess.Popen[bytes] | None = None
        self._surroundings = Surroundings(Namespace(0, "/"), mtu)

    @property
    def fabric(self) -> Namespace:
        """The namespace of the switches: bridges `data` and `mgmt`, a port `data-I` per node."""
        return self._surroundings.fabric

    @property
    def nodes(self) -> list[Node]:
        """The nodes in the order of their names as given, without the head."""
        return [self._surroundings.nodes[place.name] for place in self._places if place.kind == "node"]

    @property
    def head(self) -> Node:
        """The login node: on both networks, with an ssh configuration, without an sshd."""
        return self._surroundings.nodes["head"]

    def node(self, name: str) -> Node:
        """The node (or head) of that name."""
        if name not in self._surroundings.nodes:
            raise KeyError(f"no node {name!r}; there are {', '.join(sorted(self._surroundings.nodes))}")
        return self._surroundings.nodes[name]

    def __enter__(self) -> Cluster:
        with tempfile.TemporaryFile() as errors:
            try:
                self._start(errors, time.monotonic() + 10 + 0.5 * len(self._places))
            except BaseException as error:
                self._stop()
                errors.seek(0)
                said = errors.read().decode(errors="backslashreplace").strip()
                if isinstance(error, Exception):
                    raise ClusterError(f"the virtual cluster did not come up: {error}\n{said}") from error
                raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop()

    def _start(self, errors: IO[bytes], deadline: float) -> None:
        command = ["unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child", "--"]
        command += ["sh", str(Path(__file__).with_name("fabric.sh")), str(self._mtu), str(_DATA.prefixlen)]
        command += [library_folder() if self.gpus.devices else "-", str(_SHM_BYTES), *self._shared]
        if threading.current_thread() is threading.main_thread():
            # This signal is sent at the end of the *thread* that starts the child. Otherwise the end of the pipe on the
            # fabric's stdin ends it.
            command = ["setpriv", "--pdeathsig", "KILL", "--", *command]
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C"}
        self._carrier = carrier = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            start_new_session=True,
        )
        assert carrier.stdin is not None and carrier.stdout is not None
        reports = _Reports(carrier.stdout, deadline)
        self._surroundings = Surroundings(Namespace(int(reports.next()[1]), "/"), self._mtu)
        self._write_files()
        lines = [f"{p.name} {p.kind} {p.index} {p.data_address} {p.management_address}\n" for p in self._places]
        carrier.stdin.write("".join([*lines, ".\n"]).encode())
        carrier.stdin.flush()
        pids: dict[str, int] = {}
        while len(pids) < len(self._places):
            words = reports.next()
            if words[0] == "failed":
                raise ClusterError(f"{words[1]} did not start")
            pids[words[1]] = int(words[2])
        for place in self._places:
            folder = str(Path.cwd()) if place.kind == "head" else HOME
            self._surroundings.nodes[place.name] = Node(pids[place.name], folder, place, self._surroundings)

    def _write_files(self) -> None:
        keys = self.fabric.path(f"{_STATE}/keys")
        host_key, user_key = (keys / "host").read_text(), (keys / "user").read_text()
        host_public, user_public = (keys / "host.pub").read_text(), (keys / "user.pub").read_text()
        names = [(place.name, place.data_address) for place in self._places]
        names += [(f"{place.name}-mgmt", place.management_address) for place in self._places]
        for place in self._places:
            folder = self.fabric.path(f"{_STATE}/nodes/{place.name}")
            for empty in ("work", "run/sshd", "run/lock"):
                (folder / empty).mkdir(parents=True)
            _write(folder / "etc", etc_files(place.name, hosts_text(names), host_key, user_public))
            _write(folder / HOME[1:], home_files(host_public, user_key))
            if place.kind == "node" and self.gpus.devices:
                _write(folder, {CONFIGURATION[1:]: (self.gpus.text(place.name), 0o644)})
                shutil.copy(compile_library("stub_nvml.c"), folder / LIBRARY[1:])
                # As installed: the file is named by the driver's version, and the loader's name is a link to it.
                real = Path(CUDA_LIBRARY).name.replace(".1", f".{self.gpus.driver_version}")
                shutil.copy(compile_library("stub_cuda.c"), (folder / CUDA_LIBRARY[1:]).with_name(real))
                (folder / CUDA_LIBRARY[1:]).symlink_to(real)

    def _stop(self) -> None:
        carrier, self._carrier = self._carrier, None
        if carrier is None:
            return
        for pipe in (carrier.stdin, carrier.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        # The carrier ends after its child, and the child, as PID 1 of the fabric, after every process of every node.
        with contextlib.suppress(subprocess.TimeoutExpired):
            carrier.wait(timeout=5)
        carrier.kill()
        carrier.wait(timeout=10)
        for namespace in (self.fabric, *self._surroundings.nodes.values()):
            namespace.reap()
        self._surroundings.nodes.clear()


def _write(folder: Path, files: Mapping[str, tuple[str, int]]) -> None:
    for name, (text, mode) in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(mode)


def _paths_to_keep(shared: Sequence[Path]) -> list[str]:
    """The folders, ours and the caller's, that a node's own /tmp and /srv would hide."""
    wanted = {os.path.realpath(path) for path in shared}
    for path in sorted(wanted):
        if path in ("/tmp", "/srv", "/run") or path.startswith("/run/"):
            raise ValueError(f"{path} cannot be shared: every node has its own; expected a folder elsewhere")
    ours = [Path(sys.prefix), Path(sys.base_prefix), Path.cwd(), Path(__file__).parents[2]]
    wanted.update(os.path.realpath(path) for path in ours)
    return sorted(path for path in wanted if path.startswith(("/tmp/", "/srv/")))


class _Reports:
    """Lines from the fabric, each awaited until the deadline."""

    def __init__(self, stream: IO[bytes], deadline: float) -> None:
        self._descriptor = stream.fileno()
        self._deadline = deadline
        self._rest = b""

    def next(self) -> list[str]:
        with selectors.DefaultSelector() as selector:
            selector.register(self._descriptor, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not selector.select(max(0.0, self._deadline - time.monotonic())):
                    raise ClusterError("time is up; " + f"last word: {self._rest!r}")
                chunk = os.read(self._descriptor, 65536)
                if not chunk:
                    raise ClusterError("its first process ended")
                self._rest += chunk
        line, self._rest = self._rest.split(b"\n", 1)
        return line.decode().split()
