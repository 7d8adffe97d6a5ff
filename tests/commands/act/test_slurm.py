"""Nodes of a real Slurm are drained and resumed."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.cluster import Cluster
from tests.cluster.fixtures import require_virtual_nodes
from tests.cluster.slurm import Slurm, require_slurm, slurm
from tests.integrations.test_slurm import COMMAND, put

pytestmark = pytest.mark.thorough
#: A requirement that no machine has, and one that every machine has.
LACKING, MET = ("--expect", "cpus=100000"), ("--expect", "cpus>=1")


@pytest.fixture(scope="module")
def running() -> Iterator[Slurm]:
    """Slurm over two nodes, with preflight as /srv/preflight on the head."""
    require_virtual_nodes()
    require_slurm()
    with Cluster(2) as cluster:
        put(cluster.head, "/srv/preflight", COMMAND, 0o755)
        with slurm(cluster) as started:
            yield started


def preflight(running: Slurm, *options: str) -> tuple[int, str]:
    """Check node1, and act on Slurm's nodes. The agent runs on the head: its facts do not matter here."""
    command = ["/srv/preflight", "nodes", "--on", "local", "--hosts", "node1", "--until", "node", "--no-config", "-q"]
    done = running.cluster.head.run(
        [*command, "--select", "NOD", "--act-on", "slurm", "--act-log", "/run/act.log", *options], timeout=150
    )
    return done.returncode, done.stderr


def node1(running: Slurm) -> str:
    """What Slurm says of node1."""
    return running.control("show", "node", "node1", "--oneliner")


def test_slurm_drains_and_resumes(running: Slurm) -> None:
    everything = ("--act", "--act-at-most", "100%")
    code, said = preflight(running, *LACKING, "--act-at-most", "100%")
    assert code == 1 and "scontrol update nodename=node1 state=drain 'reason=preflight: NOD005 " in said
    assert "--act runs them" in said and "DRAIN" not in node1(running)
    code, said = preflight(running, *LACKING, "--act")
    assert code == 2 and "no node was drained" in said and "DRAIN" not in node1(running)
    try:
        code, said = preflight(running, *LACKING, *everything)
        assert code == 1 and "drain node1: preflight: NOD005" in said, said
        assert "DRAIN" in node1(running) and "Reason=preflight: NOD005 " in node1(running)
        # Could-not-tell, a run without that check, and a fault that lasts: the node stays as it is.
        for options in (("--golden", "other"), (), LACKING):
            preflight(running, *options, *everything)
            assert "Reason=preflight: NOD005 " in node1(running), options
        code, said = preflight(running, *MET, *everything)
        assert code == 0 and "resume node1" in said and "DRAIN" not in node1(running)
        running.control("update", "nodename=node1", "state=drain", "reason=bad cable")
        for options in (LACKING, MET):
            preflight(running, *options, *everything)
            assert "Reason=bad cable" in node1(running)
    finally:
        running.control("update", "nodename=node1", "state=resume")
    log = [json.loads(line) for line in running.cluster.head.path("/run/act.log").read_text().splitlines()]
    assert [(line["action"], line["result"]) for line in log] == [
        ("drain", "not run"),
        ("drain", "done"),
        ("resume", "done"),
    ]
