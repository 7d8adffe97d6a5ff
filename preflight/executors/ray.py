"""Nodes of a running Ray cluster, reached through Ray itself: an actor on each node starts the agent."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio

from preflight._util.hostnames import is_hostname
from preflight._util.sequences import join_some
from preflight.agent import bootstrap
from preflight.executors.base import (
    Bundle,
    Executor,
    ExecutorError,
    GatheredNodes,
    NodeRequest,
    Option,
    interpreter_problem,
    yes_no_problem,
)
from preflight.executors.bridge.head import Bridge, BridgedChannel
from preflight.executors.pipe import make_nonce, start_agent
from preflight.model.job import is_whole_number
from preflight.model.recording import Cluster, ClusterNode, Node

#: Useless lines on a driver's standard error.
_QUIET = {"RAY_DEDUP_LOGS": "1", "PYTHONWARNINGS": "ignore", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
_ADDRESS = re.compile(r"auto|(?:ray://)?[A-Za-z0-9\[][A-Za-z0-9.\[\]:_-]{0,254}", re.ASCII)


def _address_problem(value: str) -> str:
    return (
        "" if _ADDRESS.fullmatch(value) else f"{value!r} is not an address: expected HOST:PORT, ray://HOST:PORT or auto"
    )


_OPTIONS = (
    Option(
        "address", "the cluster; default: RAY_ADDRESS, or else this machine's", "ray://head:10001", _address_problem
    ),
    Option("interpreter", "a local Python with the cluster's Ray", "/opt/ray/bin/python", interpreter_problem),
    Option("head", "whether the head node runs ranks; default: yes if it announces CPUs or GPUs", "no", yes_no_problem),
)


@dataclass(slots=True)
class RayExecutor(Executor):
    """Runs agents as children of Ray actors. `settings` are the options; `environment` is added to the driver's."""

    settings: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    name: str = "ray"
    _bridge: Bridge | None = None
    #: Ray's ids of the nodes by our names, and why a node has none.
    _ids: dict[str, str] = field(default_factory=dict)
    _lost: dict[str, str] = field(default_factory=dict)

    options = _OPTIONS

    def configured(self, settings: Mapping[str, str]) -> RayExecutor:
        return RayExecutor(settings=dict(settings), environment=self.environment)

    def detect(self, environment: Mapping[str, str]) -> str:
        """Return why this is the driver of a submitted job, or a process for which a cluster is configured."""
        address = environment.get("RAY_ADDRESS", "")
        return f"RAY_ADDRESS={address} is set" if _ADDRESS.fullmatch(address) else ""

    async def check_usable(self, environment: Mapping[str, str], *, deadline_s: float) -> str:
        """Return the cluster that responds. Raises ExecutorError if Ray cannot be imported, or there is no cluster."""
        address = self._address(environment)
        versions = await self._connect(address, deadline_s)
        return f"the Ray cluster at {address} (Ray {versions['ray']}, Python {versions['python']})"

    async def gather(self, request: NodeRequest) -> GatheredNodes | None:
        """Return the nodes of the cluster, its head first. Raises ExecutorError."""
        with anyio.move_on_after(request.deadline_s):
            return await self._gather(request)
        raise ExecutorError(
            "timeout",
            f"the Ray cluster at {self._address(request.environment)} did not list its nodes within "
            f"{request.deadline_s:g} s; does `ray status` respond here? Outside the cluster, use Ray Client: "
            "--on-option address=ray://HEAD:10001",
        )

    async def _gather(self, request: NodeRequest) -> GatheredNodes:
        address = self._address(request.environment)
        versions = await self._connect(address, request.deadline_s)
        known = await self._running().call("nodes", deadline_s=request.deadline_s)
        cluster = Cluster("ray", tuple(cluster_node(each) for each in known if each["alive"]))
        words = f"the Ray cluster at {address} (Ray {versions['ray']}, Python {versions['python']})"
        alive = sorted((each for each in known if each["alive"]), key=_order)
        names = _names(alive)
        self._ids = {name: each["id"] for name, each in zip(names, alive, strict=True)}
        if request.named_nodes:
            named = tuple(self._find_named(node, alive, names) for node in request.named_nodes)
            return GatheredNodes(named, words, cluster=cluster)
        holding = [(name, each) for name, each in zip(names, alive, strict=True) if self._holds_ranks(each)]
        notes = tuple(
            f"{name} is the head and announces neither CPUs nor GPUs: it runs no ranks"
            for name, each in zip(names, alive, strict=True)
            if not self._holds_ranks(each)
        )
        nodes = [Node(name, index, each["address"]) for index, (name, each) in enumerate(holding)]
        dead = _lost_nodes(known, alive)
        if dead and request.count is not None and request.count > len(nodes):
            for name, each in list(dead.items())[: request.count - len(nodes)]:
                self._lost[name] = f"Ray lost this node: {each['death'] or 'no reason given'}"
                nodes.append(Node(name, len(nodes), each["address"]))
        elif dead:
            listed = ", ".join(f"{name} ({each['death'] or 'no reason'})" for name, each in list(dead.items())[:8])
            notes = (*notes, f"{len(dead)} nodes were lost earlier and are not counted: {listed}")
        if not nodes:
            raise ExecutorError("missing", f"{words} has no live node that can run ranks; see `ray status`")
        return GatheredNodes(tuple(nodes), words, notes, cluster=cluster)

    def _holds_ranks(self, node: Mapping[str, Any]) -> bool:
        """Return whether a node can hold ranks: KubeRay and others start the head without CPUs and GPUs."""
        if not node["head"]:
            return True
        if "head" in self.settings:
            return self.settings["head"] == "yes"
        return bool(node["has"].get("CPU") or node["has"].get("GPU"))

    def _find_named(self, node: Node, alive: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Node:
        """Return the node of the cluster that the user means, by host name, short name or address."""
        for name, each in zip(names, alive, strict=True):
            if node.name in (name, each["host"], each["host"].split(".")[0], each["address"]):
                self._ids[node.name] = each["id"]
                return Node(node.name, node.index, each["address"], node.slots)
        listed = join_some(names, 8)
        self._lost[node.name] = f"no live node of the Ray cluster has this name; the live nodes are {listed}"
        return node

    async def open(self, node: Node, *, deadline_s: float, bundle: Bundle) -> BridgedChannel:
        """Start an agent on `node`. Raises ExecutorError with Ray's message."""
        if not is_hostname(node.name):
            raise ExecutorError("denied", f"{node.name}: {node.name!r} is not a valid host name")
        if node.name in self._lost:
            raise ExecutorError("unreachable", f"{node.name}: {self._lost[node.name]}")
        ray_id = self._ids.get(node.name)
        if ray_id is None:
            raise ExecutorError("missing", f"{node.name}: the Ray cluster has no such node")
        nonce = make_nonce()
        arguments = bootstrap.arguments("python", nonce, ["-I", "-u"])[1:]
        started_at = anyio.current_time()
        try:
            channel = await self._running().open(
                {"node": ray_id, "arguments": arguments, "deadline_s": max(0.5, deadline_s - 0.5)},
                description=f"a Ray actor on {node.name}",
                deadline_s=deadline_s,
            )
        except ExecutorError as error:
            raise ExecutorError(error.kind, f"{node.name}: {error.message}", error.detail) from None
        left = max(0.5, deadline_s - (anyio.current_time() - started_at))
        diagnose = functools.partial(explain, node.name, deadline_s=deadline_s)
        await start_agent(channel, node.name, nonce, bundle=bundle, diagnose=diagnose, deadline_s=left)
        return channel

    async def aclose(self) -> None:
        """Stop being a driver of the cluster, which ends all our actors."""
        bridge, self._bridge = self._bridge, None
        if bridge is not None:
            await bridge.aclose()

    def _address(self, environment: Mapping[str, str]) -> str:
        return self.settings.get("address") or environment.get("RAY_ADDRESS") or "auto"

    def _running(self) -> Bridge:
        if self._bridge is None:
            interpreter = self.settings.get("interpreter") or sys.executable
            self._bridge = Bridge("ray_side:main", interpreter=interpreter, environment={**_QUIET, **self.environment})
        return self._bridge

    async def _connect(self, address: str, deadline_s: float) -> Any:
        return await self._running().call("connect", {"address": address}, deadline_s=deadline_s)


def explain(name: str, code: int | None, error_text: str, *, deadline_s: float) -> ExecutorError:
    """Explain a failed start of an agent, from its exit `code` (None: unknown) and its `error_text`."""
    lines = [line.strip() for line in error_text.splitlines() if line.strip()]
    last_line = f": {lines[-1]}" if lines else ""
    if code == bootstrap.TOO_OLD:
        return ExecutorError(
            "missing", f"{name}: the Python of Ray's workers there is older than 3.8{last_line}", error_text
        )
    if code is None and not error_text:
        return ExecutorError(
            "timeout", f"{name}: the worker's Python started no agent within {deadline_s:g} s", error_text
        )
    if code is None:
        return ExecutorError(
            "unreachable", f"{name}: its actor was lost before the agent responded{last_line}", error_text
        )
    return ExecutorError("crashed", f"{name}: the agent ended with exit code {code}{last_line}", error_text)


def _order(node: Mapping[str, Any]) -> tuple[Any, ...]:
    parts = re.split(r"(\d+)", node["host"])
    return (not node["head"], [(int(part), "") if is_whole_number(part) else (-1, part) for part in parts], node["id"])


def _names(nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a name for each node: its host's, followed by Ray's id if several nodes are on one host."""
    hosts = [each["host"] if is_hostname(each["host"]) else each["address"] for each in nodes]
    return [
        host if hosts.count(host) == 1 else f"{host}-{each['id'][:6]}" for host, each in zip(hosts, nodes, strict=True)
    ]


def cluster_node(node: Mapping[str, Any]) -> ClusterNode:
    """Return one node as Ray announces it."""
    return ClusterNode(node["host"] or node["address"], dict(node["has"]), node["free"], dict(node["labels"]))


def _lost_nodes(known: Sequence[Mapping[str, Any]], alive: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the nodes that ended unexpectedly and whose host has not come back."""
    back = {each["host"] for each in alive} | {each["address"] for each in alive}
    return {
        (each["host"] or each["address"]): each
        for each in known
        if not each["alive"] and each["unwanted"] and each["host"] not in back and each["address"] not in back
    }


EXECUTOR = RayExecutor()
