"""The suite for the executor that replays a recording, as far as it applies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from preflight.model.recording import FactRecord, Node, NodeRecord, Recording
from preflight.model.recording_io import save
from preflight.model.requests import Request
from tests.cluster import Cluster
from tests.executors.conformance import Broken, Conformance, World
from tests.executors.trial import MEGABYTE

pytestmark = pytest.mark.thorough
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
