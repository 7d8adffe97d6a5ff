"""A real Ray cluster on virtual nodes: a worker on each, its head on the cluster's head, which announces no CPUs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.cluster import Cluster, Node
from tests.cluster.node import wait_until

PORT = 6379
#: With tokens, because nodes without a token would use the one in a shared home directory.
ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "f" * 64,
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_prestart_worker_first_driver": "0",
    # As quickly as a real cluster notices a node that signs off.
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "2",
}
_START_S = 90.0
_RAY = ("-m", "ray.scripts.scripts", "start", "--object-store-memory", "80000000", "--disable-usage-stats")


@dataclass
class RayNodes:
    """A running cluster. `address` is the one for drivers."""

    address: str
    head: Node
    environment: dict[str, str] = field(default_factory=lambda: dict(ENVIRONMENT))

    def start_workers(self, nodes: Sequence[Node], *options: str, cpus: int = 1) -> None:
        """Have these nodes join, all at once."""
        starting = [
            node.popen(
                [
                    *(sys.executable, *_RAY, "--address", self.address, "--node-ip-address", node.data_address),
                    *("--num-cpus", str(cpus), *options),
                ],
                env=self.environment,
            )
            for node in nodes
        ]
        for process in starting:
            output, errors = process.communicate(timeout=_START_S)
            assert process.returncode == 0, output + errors

    def kill_raylet(self, node: Node) -> None:
        """Kill a node as a power cut would, and wait until the cluster has noticed."""
        node.must(["pkill", "-KILL", "-x", "raylet"])
        wait_until(lambda: node.name in self.dead(), 60, f"Ray to miss {node.name}")

    def dead(self) -> list[str]:
        """The host names of the nodes that the cluster has lost."""
        code = (
            "import ray; ray.init(address='auto', logging_level='ERROR', log_to_driver=False);"
            "print(*(n['NodeManagerHostname'] for n in ray.nodes() if not n['Alive']))"
        )
        done = self.head.run([sys.executable, "-c", code], env={**self.environment, "RAY_ADDRESS": self.address})
        return done.stdout.split()


@contextmanager
def ray_cluster(cluster: Cluster, *, workers: Sequence[Node], cpus: int = 1) -> Iterator[RayNodes]:
    """Ray on the head and on `workers`; it ends with the cluster's namespaces, or here."""
    head = cluster.head
    running = RayNodes(f"{head.data_address}:{PORT}", head)
    command = [
        *(sys.executable, *_RAY, "--head", "--node-ip-address", head.data_address, "--port", str(PORT)),
        *("--num-cpus", "0", "--include-dashboard", "false", "--temp-dir", "/run/ray"),
    ]
    try:
        done = head.run(command, env=running.environment, timeout=_START_S)
        assert done.returncode == 0, done.stdout + done.stderr
        running.start_workers(workers, cpus=cpus)
        yield running
    finally:
        # Workers end with their raylet, and everything with its node at the latest; `ray stop` takes seconds for each.
        for node in (*workers, head):
            node.run(["pkill", "-KILL", "-x", "raylet|gcs_server"], timeout=30)
