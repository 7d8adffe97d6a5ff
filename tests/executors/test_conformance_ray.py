"""The suite for the Ray executor, on a real Ray cluster of virtual nodes, and tests specific to Ray."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cluster import Cluster
from tests.executors.conformance import Broken, Conformance, World, names, python_faults
from tests.executors.ray_cluster import ray_cluster

pytest.importorskip("ray", reason="Ray is not installed: pip install ray")
pytestmark = pytest.mark.thorough
_OWN = "the agent runs with the Python that Ray's own workers run with, which is there"


class TestRay(Conformance):
    """Three workers; the head announces no CPUs and runs no ranks."""

    @pytest.fixture(scope="class")
    @classmethod
    def world(cls, cluster: Cluster) -> Iterator[World]:
        nodes = cluster.nodes[:3]
        broken = nodes[2]
        with ray_cluster(cluster, workers=nodes) as ray:

            @contextmanager
            def killed() -> Iterator[Broken]:
                ray.kill_raylet(broken)
                try:
                    yield Broken("node3", kinds=("unreachable",), words=("Ray lost it",))
                finally:
                    ray.start_workers([broken])

            ways = python_faults(broken, "node3")
            yield World(
                cluster,
                cluster.head,
                names(nodes),
                ("--on", "ray", "--count", "3", "--deadline", "20"),
                environment={**ray.environment, "RAY_ADDRESS": ray.address},
                silent=ways["silent"],
                failing=killed,
                unsupported={
                    "test_node_without_a_usable_python_is_reported": _OWN,
                    "test_noise_before_the_agent_is_skipped": "no login shell is between a worker and the agent",
                },
            )

    def test_current_cluster_is_found_without_its_head(self, world: World) -> None:
        """RAY_ADDRESS alone chooses the executor."""
        arguments = ("--count", "3")
        said = World(world.cluster, world.head, world.nodes, arguments, world.environment).trial("look")
        assert said["executor"] == "ray"
        assert "RAY_ADDRESS=" in said["origin"]["because"]
        assert "the Ray cluster at" in said["origin"]["words"]
        assert any("runs no ranks" in note for note in said["origin"]["notes"])

    def test_nodes_are_found_by_name_and_address(self, world: World) -> None:
        said = world.trial("look", "--hosts", "node2,10.77.0.1,node9")
        first, second, third = said["records"]
        assert (first["problem"], first["host"]) == ("", "node2")
        assert (second["problem"], second["host"]) == ("", "node1")
        assert third["problem_kind"] == "unreachable" and "node1, node2, node3" in third["problem"]
