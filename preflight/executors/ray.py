"""Nodes of a running Ray cluster, reached through Ray itself: an actor on each node starts the agent.

Neither ssh nor a scheduler is needed: who can submit to the cluster can look at its nodes. Ray wants the driver to
have the cluster's own Ray and Python, so that the driver is a process of its own, under any interpreter.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import anyio

from preflight.executors.base import Bundle, ExecutorError, Gathered, Option, Wanted
from preflight.executors.bridge.head import Bridge, BridgedChannel
from preflight.executors.pipe import new_nonce, start_agent
from preflight.job.hostname import is_hostname
from preflight.lazy.dataclasses import dataclass
from preflight.lazy.patterns import lazy_pattern
from preflight.node import bootstrap
from preflight.recording import Cluster, ClusterNode, Node

#: What a driver says on standard error that helps nobody.
_QUIET = {"RAY_DEDUP_LOGS": "1", "PYTHONWARNINGS": "ignore", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
_ADDRESS = lazy_pattern(r"auto|(?:ray://)?[A-Za-z0-9\[][A-Za-z0-9.\[\]:_-]{0,254}", re.ASCII)


def _address_wrong(value: str) -> str:
    return "" if _ADDRESS.fullmatch(value) else f"{value!r} is no address: HOST:PORT, ray://HOST:PORT or auto"


def _program_wrong(value: str) -> str:
    return "" if value and "\0" not in value else "the path of a Python is expected"


def _head_wrong(value: str) -> str:
    return "" if value in ("yes", "no") else "yes or no is expected"


_OPTIONS = (
    Option("address", "the cluster; default: RAY_ADDRESS, else this machine's", "ray://head:10001", _address_wrong),
    Option("interpreter", "a Python here with the cluster's Ray", "/opt/ray/bin/python", _program_wrong),
    Option("head", "whether the head node holds ranks; default: where it announces CPUs or GPUs", "no", _head_wrong),
)


@dataclass(slots=True)
class RayExecutor:
    """Runs agents below actors. `told` are the options; `environment` is laid over that of the driver."""

    told: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    name: str = "ray"
    _bridge: Bridge | None = None
    #: Ray's ids of the nodes by our names, and why a node has none.
    _ids: dict[str, str] = field(default_factory=dict)
    _lost: dict[str, str] = field(default_factory=dict)

    @property
    def options(self) -> tuple[Option, ...]:
        """What it can be told."""
        return _OPTIONS

    def configured(self, given: Mapping[str, str]) -> RayExecutor:
        """Another one that was told so."""
        return RayExecutor(told=dict(given), environment=self.environment)

    def detect(self, environment: Mapping[str, str]) -> str:
        """In the driver of a submitted job, and wherever somebody said which cluster is meant."""
        address = environment.get("RAY_ADDRESS", "")
        return f"RAY_ADDRESS={address} is set" if _ADDRESS.fullmatch(address) else ""

    async def usable(self, environment: Mapping[str, str], *, deadline_s: float) -> str:
        """Which cluster answers. Raises ExecutorError where Ray cannot be imported, or no cluster is there."""
        address = self._address(environment)
        versions = await self._connect(address, deadline_s)
        return f"the Ray cluster at {address} (Ray {versions['ray']}, Python {versions['python']})"

    async def gather(self, wanted: Wanted) -> Gathered | None:
        """The nodes of the cluster, its head first.

        Raises:
            ExecutorError: the cluster cannot be asked.
        """
        with anyio.move_on_after(wanted.deadline_s):
            return await self._gather(wanted)
        raise ExecutorError(
            "timeout",
            f"the Ray cluster at {self._address(wanted.environment)} did not say within {wanted.deadline_s:g} s which "
            "nodes it has; does `ray status` answer here? From a machine that is no node of the cluster Ray Client is "
            "needed: --on-option address=ray://HEAD:10001",
        )

    async def _gather(self, wanted: Wanted) -> Gathered:
        address = self._address(wanted.environment)
        versions = await self._connect(address, wanted.deadline_s)
        known = await self._running().call("nodes", deadline_s=wanted.deadline_s)
        cluster = Cluster("ray", tuple(cluster_node(each) for each in known if each["alive"]))
        words = f"the Ray cluster at {address} (Ray {versions['ray']}, Python {versions['python']})"
        alive = sorted((each for each in known if each["alive"]), key=_order)
        names = _names(alive)
        self._ids = {name: each["id"] for name, each in zip(names, alive, strict=True)}
        if wanted.named:
            named = tuple(self._named(node, alive, names) for node in wanted.named)
            return Gathered(named, words, cluster=cluster)
        holding = [(name, each) for name, each in zip(names, alive, strict=True) if self._holds_ranks(each)]
        notes = tuple(
            f"{name} is the head and announces neither CPUs nor GPUs: it holds no ranks"
            for name, each in zip(names, alive, strict=True)
            if not self._holds_ranks(each)
        )
        nodes = [Node(name, index, each["address"]) for index, (name, each) in enumerate(holding)]
        dead = _dead(known, alive)
        if dead and wanted.count is not None and wanted.count > len(nodes):
            for name, each in list(dead.items())[: wanted.count - len(nodes)]:
                self._lost[name] = f"Ray lost it: {each['death'] or 'no reason is given'}"
                nodes.append(Node(name, len(nodes), each["address"]))
        elif dead:
            listed = ", ".join(f"{name} ({each['death'] or 'no reason'})" for name, each in list(dead.items())[:8])
            notes = (*notes, f"{len(dead)} nodes were lost before and are not counted: {listed}")
        if not nodes:
            raise ExecutorError("missing", f"{words} has no node that is alive and could hold ranks; see `ray status`")
        return Gathered(tuple(nodes), words, notes, cluster=cluster)

    def _holds_ranks(self, node: Mapping[str, Any]) -> bool:
        """KubeRay and others start the head without CPUs and GPUs, so that nothing is placed there."""
        if not node["head"]:
            return True
        if "head" in self.told:
            return self.told["head"] == "yes"
        return bool(node["has"].get("CPU") or node["has"].get("GPU"))

    def _named(self, node: Node, alive: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Node:
        """The node of the cluster that the user means, by host name, short name or address."""
        for name, each in zip(names, alive, strict=True):
            if node.name in (name, each["host"], each["host"].split(".")[0], each["address"]):
                self._ids[node.name] = each["id"]
                return Node(node.name, node.index, each["address"], node.slots)
        listed = ", ".join(names[:8]) + (" ..." if len(names) > 8 else "")
        self._lost[node.name] = f"no node of the Ray cluster that is alive is called so; there are {listed}"
        return node

    async def open(self, node: Node, *, deadline_s: float, bundle: Bundle) -> BridgedChannel:
        """Start an agent on `node`. Raises ExecutorError that says what Ray said."""
        if not is_hostname(node.name):
            raise ExecutorError("denied", f"{node.name}: {node.name!r} is no host name, and Ray is not asked for it")
        if node.name in self._lost:
            raise ExecutorError("unreachable", f"{node.name}: {self._lost[node.name]}")
        ray_id = self._ids.get(node.name)
        if ray_id is None:
            raise ExecutorError("missing", f"{node.name}: the Ray cluster has no such node")
        nonce = new_nonce()
        arguments = bootstrap.arguments("python", nonce, ["-I", "-u"])[1:]
        began = anyio.current_time()
        try:
            channel = await self._running().open(
                {"node": ray_id, "arguments": arguments, "deadline_s": max(0.5, deadline_s - 0.5)},
                description=f"a Ray actor on {node.name}",
                deadline_s=deadline_s,
            )
        except ExecutorError as error:
            raise ExecutorError(error.kind, f"{node.name}: {error.message}", error.detail) from None
        left = max(0.5, deadline_s - (anyio.current_time() - began))

        def diagnose(code: int | None, words: str) -> ExecutorError:
            return explain(node.name, code, words, deadline_s=deadline_s)

        await start_agent(channel, node.name, nonce, bundle=bundle, diagnose=diagnose, deadline_s=left)
        return channel

    async def aclose(self) -> None:
        """Stop being a driver of the cluster, which ends every actor of ours."""
        bridge, self._bridge = self._bridge, None
        if bridge is not None:
            await bridge.aclose()

    def _address(self, environment: Mapping[str, str]) -> str:
        return self.told.get("address") or environment.get("RAY_ADDRESS") or "auto"

    def _running(self) -> Bridge:
        if self._bridge is None:
            interpreter = self.told.get("interpreter") or sys.executable
            self._bridge = Bridge("ray_side:main", interpreter=interpreter, environment={**_QUIET, **self.environment})
        return self._bridge

    async def _connect(self, address: str, deadline_s: float) -> Any:
        return await self._running().call("connect", {"address": address}, deadline_s=deadline_s)


def explain(name: str, code: int | None, words: str, *, deadline_s: float) -> ExecutorError:
    """What became of an agent's start that ended with `code` (None: nobody knows) and said `words`."""
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    said = f": {lines[-1]}" if lines else ""
    if code == bootstrap.TOO_OLD:
        return ExecutorError("missing", f"{name}: the Python of Ray's workers there is older than 3.8{said}", words)
    if code is None and not words:
        return ExecutorError("timeout", f"{name}: the worker's Python started no agent within {deadline_s:g} s", words)
    if code is None:
        return ExecutorError("unreachable", f"{name}: its actor was lost before the agent spoke{said}", words)
    return ExecutorError("crashed", f"{name}: the agent ended with exit code {code}{said}", words)


def _order(node: Mapping[str, Any]) -> tuple[Any, ...]:
    parts = re.split(r"(\d+)", node["host"])
    return (not node["head"], [(int(part), "") if part.isdigit() else (-1, part) for part in parts], node["id"])


def _names(nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for each node: its host's, with Ray's id behind it where several are on one host."""
    hosts = [each["host"] if is_hostname(each["host"]) else each["address"] for each in nodes]
    return [
        host if hosts.count(host) == 1 else f"{host}-{each['id'][:6]}" for host, each in zip(hosts, nodes, strict=True)
    ]


def cluster_node(node: Mapping[str, Any]) -> ClusterNode:
    """One node as Ray announces it."""
    return ClusterNode(node["host"] or node["address"], dict(node["has"]), node["free"], dict(node["labels"]))


def _dead(known: Sequence[Mapping[str, Any]], alive: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Nodes that went without anybody wanting it, and whose host has not come back."""
    back = {each["host"] for each in alive} | {each["address"] for each in alive}
    return {
        (each["host"] or each["address"]): each
        for each in known
        if not each["alive"] and each["unwanted"] and each["host"] not in back and each["address"] not in back
    }


EXECUTOR = RayExecutor()
