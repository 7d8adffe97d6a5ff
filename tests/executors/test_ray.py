"""The Ray executor's handling of Ray's data and errors; test_conformance_ray.py uses a real cluster."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from preflight.executors.base import ExecutorError, NodeRequest
from preflight.executors.bridge.ray_side import explain_connection_failure, explain_start_failure, node_facts
from preflight.executors.ray import RayExecutor, explain
from preflight.model.recording import Node
from tests.executors.trial import no_bundle

MISMATCH = """RuntimeError: Version mismatch: The cluster was started with:
    Ray: 2.9.0
    Python: 3.10.13
This process on Ray Client was started with:
    Ray: 2.60.0
    Python: 3.11.7
"""


@pytest.mark.parametrize(
    ("message", "kind", "words"),
    [
        (MISMATCH, "blocked", "the cluster runs Ray 2.9.0 with Python 3.10.13"),
        (MISMATCH, "blocked", "has Ray 2.60.0 with Python 3.11.7; name the same Python as the cluster's"),
        ("ConnectionError: Could not find any running Ray instance. Please specify", "unreachable", "`ray status"),
        ("RpcError: UNAUTHENTICATED: InvalidAuthToken: no", "denied", "RAY_AUTH_TOKEN"),
        ("RuntimeError: Can't find a `node_ip_address.json` file", "unreachable", "ray://HEAD:10001"),
        ("ValueError: something new", "unreachable", "could not connect to auto: ValueError: something new"),
    ],
)
def test_driver_errors_are_explained(message: str, kind: str, words: str) -> None:
    trouble = explain_connection_failure("auto", message, "2.60.0")
    assert trouble.kind == kind and words in trouble.message, trouble.message


def error_called(name: str, message: str) -> Exception:
    """An exception with the name of Ray's."""
    return type(name, (Exception,), {})(message)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("GetTimeoutError", "timeout", "within 5 s"),
        ("ActorUnschedulableError", "unreachable", "no longer knows the node"),
        ("RuntimeEnvSetupError", "crashed", "runtime environment"),
        ("ActorDiedError", "unreachable", "last words"),
    ],
)
def test_actor_errors_are_explained(name: str, kind: str, words: str) -> None:
    trouble = explain_start_failure(error_called(name, "first\n\x1b[31mlast words\x1b[0m\n\n"), 5.0)
    assert trouble.kind == kind and words in trouble.message, trouble.message


def raw(host: str, **changes: Any) -> dict[str, Any]:
    """A node in the form of `ray.nodes()`."""
    node = {
        "NodeID": f"{host}0000000",
        "Alive": True,
        "NodeManagerHostname": host,
        "NodeManagerAddress": f"10.0.0.{len(host)}",
        "Resources": {"CPU": 8.0, "node:10.0.0.1": 1.0},
    }
    return {**node, **changes}


class Answering:
    """A bridge that answers calls from a list; nothing is started."""

    def __init__(self, nodes: list[dict[str, Any]]) -> None:
        self._nodes = nodes

    async def call(self, name: str, parameters: Any = None, *, deadline_s: float) -> Any:
        return {"ray": "2.60.0", "python": "3.11.7"} if name == "connect" else self._nodes

    async def aclose(self) -> None:
        pass


def executor(*nodes: dict[str, Any], **settings: str) -> RayExecutor:
    chosen = RayExecutor(settings=settings)
    chosen._bridge = Answering([node_facts(node, None) for node in nodes])  # type: ignore[assignment]
    return chosen


def names(chosen: RayExecutor, **wanted: Any) -> list[str]:
    gathered = anyio.run(lambda: chosen.gather(NodeRequest(**wanted)))
    assert gathered is not None
    return [node.name for node in gathered.nodes]


HEAD = raw("head", Resources={"memory": 1.0, "node:__internal_head__": 1.0})


def test_nodes_are_in_numeric_order_without_an_empty_head() -> None:
    workers = [raw(f"gpu-{number}") for number in (10, 9, 1)]
    assert names(executor(HEAD, *workers)) == ["gpu-1", "gpu-9", "gpu-10"]
    assert names(executor(HEAD, *workers, head="yes")) == ["head", "gpu-1", "gpu-9", "gpu-10"]
    full = raw("zhead", Resources={"CPU": 8.0, "node:__internal_head__": 1.0})
    assert names(executor(full, *workers))[0] == "zhead"


def test_nodes_on_one_host_get_distinct_names() -> None:
    twins = [raw("big", NodeID="aaaaaaa1"), raw("big", NodeID="bbbbbbb2")]
    assert names(executor(*twins)) == ["big-aaaaaa", "big-bbbbbb"]


def test_lost_node_is_included_only_if_the_job_needs_it() -> None:
    lost = raw("gpu-2", Alive=False, DeathReason=2, DeathReasonMessage="health check failed", NodeManagerAddress="z")
    drained = raw("gpu-3", Alive=False, DeathReason="AUTOSCALER_DRAIN_IDLE", NodeManagerAddress="y")
    chosen = executor(raw("gpu-1"), lost, drained)
    assert names(chosen, count=4) == ["gpu-1", "gpu-2"]

    async def opened() -> None:
        with pytest.raises(ExecutorError, match="gpu-2: Ray lost this node: health check failed"):
            await chosen.open(Node("gpu-2", 1), deadline_s=1.0, bundle=no_bundle)

    anyio.run(opened)
    chosen = executor(raw("gpu-1"), lost)
    gathered = anyio.run(lambda: chosen.gather(NodeRequest(count=1)))
    assert gathered is not None and len(gathered.nodes) == 1
    assert any("gpu-2 (health check failed)" in note for note in gathered.notes)
    assert names(executor(raw("gpu-2", NodeManagerAddress="new"), lost), count=4) == ["gpu-2"]


def test_cluster_without_usable_nodes_is_reported() -> None:
    with pytest.raises(ExecutorError, match="no live node"):
        anyio.run(lambda: executor(HEAD).gather(NodeRequest()))


@pytest.mark.parametrize(
    ("address", "found"), [("10.0.0.1:6379", True), ("ray://head:10001", True), ("", False), ("a b; touch x", False)]
)
def test_the_address_in_the_environment_is_recognised(address: str, found: bool) -> None:
    assert bool(RayExecutor().detect({"RAY_ADDRESS": address} if address else {})) is found


@pytest.mark.parametrize("address", ["-x", "a b", "ray://", "http://h:1/", "x\ny"])
def test_invalid_address_is_rejected(address: str) -> None:
    (option,) = [option for option in RayExecutor().options if option.name == "address"]
    assert option.problem_of(address) and not option.problem_of("ray://head:10001")


def test_python_without_ray_is_reported(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nshift; exec {sys.executable} -I -S -u "$@"\n')
    bare.chmod(0o755)
    chosen = RayExecutor(settings={"interpreter": str(bare)})

    async def main() -> None:
        try:
            await chosen.gather(NodeRequest(deadline_s=20.0))
        finally:
            await chosen.aclose()

    with pytest.raises(ExecutorError, match=r"pip install 'preflight-train\[ray\]'") as caught:
        anyio.run(main)
    assert caught.value.kind == "missing"


@pytest.mark.parametrize(
    ("code", "words", "kind", "message"),
    [
        (97, "", "missing", "older than 3.8"),
        (None, "", "timeout", "no agent within 5 s"),
        (None, "The actor died", "unreachable", "The actor died"),
        (1, "boom", "crashed", "exit code 1: boom"),
    ],
)
def test_agent_failures_are_explained(code: int | None, words: str, kind: str, message: str) -> None:
    error = explain("n1", code, words, deadline_s=5)
    assert error.kind == kind and message in error.message and error.message.startswith("n1: ")


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("127.0.0.1:9", "nothing responds at 127.0.0.1:9"),
        ("ray://127.0.0.1:9", "nothing responds at ray://127.0.0.1:9"),
        ("no-such-host.invalid:6379", "does not resolve here"),
    ],
)
def test_unreachable_address_is_reported_at_once(address: str, words: str) -> None:
    from preflight.executors.bridge.mux import BridgeError
    from preflight.executors.bridge.ray_side import _check_reachable

    with pytest.raises(BridgeError, match=words) as caught:
        _check_reachable(address)
    assert caught.value.kind == "unreachable"
    _check_reachable("auto")
