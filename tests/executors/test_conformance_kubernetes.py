"""The suite for the Kubernetes executor: a STUB of the API server that starts programs in virtual nodes as its pods."""

from __future__ import annotations

import ctypes
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import Cluster
from tests.executors.conformance import Broken, Conformance, World, names, python_faults
from tests.executors.kubernetes_stub import api_server

pytest.importorskip("kubernetes", reason="the Kubernetes client is not installed: pip install kubernetes")
pytestmark = pytest.mark.thorough


def listening_in(pid: int) -> socket.socket:
    """A socket that listens on loopback in the network namespace of a process."""
    found: list[socket.socket | OSError] = []

    def enter() -> None:
        # The namespace is the thread's alone (setns(2)), and the socket stays in it.
        library = ctypes.CDLL(None, use_errno=True)
        with Path(f"/proc/{pid}/ns/net").open() as place:
            if library.setns(place.fileno(), 0) != 0:
                found.append(OSError(ctypes.get_errno(), "setns"))
                return
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        found.append(listener)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    (result,) = found
    if isinstance(result, OSError):
        raise result
    return result


class TestKubernetes(Conformance):
    """Four pods, each on a virtual node."""

    @pytest.fixture(scope="class")
    @classmethod
    def world(cls, cluster: Cluster) -> Iterator[World]:
        def start(pod: str, command: list[str]) -> subprocess.Popen[Any]:
            return cluster.node(pod.replace("train-", "node")).popen(command, stdin=subprocess.PIPE)

        with api_server(listening_in(cluster.head.pid), start=start) as stub:
            for index, node in enumerate(cluster.nodes, start=1):
                pod = stub.add_pod(f"train-{index}", node=node.name)
                pod["metadata"]["labels"] = {"job-name": "train"}
            config = "/run/kubeconfig"
            stub.write_kubeconfig(cluster.head.path(config))
            arguments = ("--on", "kubernetes", "--on-option", f"kubeconfig={config}", "--on-option", "job=train")

            @contextmanager
            def silent() -> Iterator[Broken]:
                # As with a frozen kubelet: the API server waits for it, and the executor for the API server.
                stub.silent = "/api/v1/namespaces/train/pods/train-3/exec"
                try:
                    yield Broken("node3", kinds=("timeout",), words=("train-3",))
                finally:
                    stub.silent = ""

            ways = {**python_faults(cluster.node("node3"), "node3"), "silent": silent}
            yield World(cluster, cluster.head, names(cluster.nodes), arguments, **ways)

    def test_missing_named_pod_is_reported(self, world: World) -> None:
        """Beyond the suite: specific to pods."""
        said = world.trial("look", "--hosts", "train-1,nowhere")
        first, second = said["records"]
        assert first["problem"] == ""
        assert second["problem_kind"] == "missing" and "the pod does not exist" in second["problem"]
