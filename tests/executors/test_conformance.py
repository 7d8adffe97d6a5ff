"""The suite for the executors that need no scheduler: this machine, ssh, and a recording that is replayed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from preflight.model.recording import FactRecord, Node, NodeRecord, Recording
from preflight.model.recording_io import save
from preflight.model.requests import Request
from tests.cluster import Cluster, faults
from tests.executors.conformance import SCRIPTS, Break, Broken, Conformance, World, names, python_faults
from tests.executors.trial import MEGABYTE

pytestmark = pytest.mark.thorough
_PYTHON = sys.executable


class TestSsh(Conformance):
    """Over the real client to real daemons."""

    @pytest.fixture(scope="class")
    @classmethod
    def world(cls, cluster: Cluster) -> Iterator[World]:
        """Four nodes with sshd."""
        broken = cluster.node("node3")

        @contextmanager
        def frozen() -> Iterator[Broken]:
            with faults.sshd_frozen(broken):
                yield Broken("node3", kinds=("timeout",), words=("does not answer",))

        ways = {**python_faults(broken, "node3"), "silent": frozen}
        yield World(cluster, cluster.head, names(cluster.nodes), ("--on", "ssh", "--hosts", "node[1-4]"), **ways)


class TestLocal(Conformance):
    """Every node is the head itself."""

    @pytest.fixture(scope="class")
    @classmethod
    def world(cls, cluster: Cluster) -> Iterator[World]:
        """Three nodes on one machine; one of them gets a broken interpreter."""
        head = cluster.head

        def broken(how: str, script: str, result: Broken, *, once: bool = True) -> Break:
            @contextmanager
            def inject() -> Iterator[Broken]:
                # The first one makes the folder; only that one is broken.
                head.run(["rm", "-rf", "/run/first"])
                first = 'mkdir /run/first 2>/dev/null || exec $REAL "$@"\n' if once else ""
                head.write_text("/run/python", f"#!/bin/sh\nREAL={_PYTHON}\n{first}{script}\n")
                head.must(["chmod", "755", "/run/python"])
                yield replace(result, arguments=("--on-option", "python=/run/python"))

            return inject

        ways = {how: broken(how, script, result) for how, (script, result) in SCRIPTS.items()}
        gone = Broken(kinds=("missing",), words=("cannot be run",))
        unsupported = {"test_invalid_host_name_is_rejected": "names of nodes go nowhere: each is this machine"}
        yield World(
            cluster,
            head,
            {f"local{index}": "head" for index in range(3)},
            ("--on", "local", "--count", "3"),
            **ways,
            without_python=broken("gone", "exit 127", gone),
            unsupported=unsupported,
        )


# The suite for the executor that replays a recording, as far as it applies.


_NAMES = ("node1", "node2", "node3")
_NO_PROCESS = "a recording starts no process"
_PATH = "/run/recording.json"


def recorded() -> Recording:
    """Three nodes, each of which sent a megabyte."""
    payloads = {name: (name * MEGABYTE)[:MEGABYTE] for name in _NAMES}
    return Recording(
        (),
        "2026-01-01T00:00:00+00:00",
        "0.1",
        verb="check",
        nodes=tuple(NodeRecord(Node(name, index), host=name) for index, name in enumerate(_NAMES)),
        facts=tuple(
            FactRecord(Request("shipped.probes:echo", name, {"value": payload}), payload)
            for name, payload in payloads.items()
        ),
    )


class TestReplay(Conformance):
    """The recording of three nodes."""

    @pytest.fixture(scope="class")
    @classmethod
    def world(cls, cluster: Cluster) -> Iterator[World]:
        place, recording = cluster.head.path(_PATH), recorded()
        place.write_bytes(save(recording))

        @contextmanager
        def failing() -> Iterator[Broken]:
            lost = NodeRecord(Node("node3", 2), "node3: the disk is on fire", "crashed")
            place.write_bytes(save(replace(recording, nodes=(*recording.nodes[:2], lost))))
            try:
                yield Broken("node3", kinds=("crashed",), words=("the disk is on fire",))
            finally:
                place.write_bytes(save(recording))

        yield World(
            cluster,
            cluster.head,
            {name: name for name in _NAMES},
            ("--on", "replay", "--on-option", f"recording={_PATH}"),
            failing=failing,
            unsupported={
                "test_noise_before_the_agent_is_skipped": _NO_PROCESS,
                "test_node_without_a_usable_python_is_reported": _NO_PROCESS,
                "test_deadline_holds_for_a_silent_node": "a recorded node answers at once or not at all",
                "test_nothing_outlives_the_head": _NO_PROCESS,
                "test_cancelling_silent_nodes_returns_at_once": "a recorded node answers at once or not at all",
            },
        )
