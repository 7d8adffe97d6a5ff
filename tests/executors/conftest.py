"""A virtual cluster for the tests over ssh, and a head process in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import Cluster
from tests.cluster.fixtures import cluster

__all__ = ["cluster"]

ROOT = Path(__file__).parents[2]
PATHS = os.pathsep.join(str(path) for path in (ROOT, ROOT / "checks", ROOT / "rules", ROOT / "tests/agent"))
#: Opens a fleet over ssh, sends a request to every node, and prints the answers as one line of JSON.
LOOK = """
import dataclasses, json, os, sys, time
import anyio
from shipped import SHIPPED
from preflight.executors.ssh import SshExecutor
from preflight.runner.session import open_fleet
from tests.executors.trial import SHIPPED
from preflight.model.recording import Node

async def main():
    began = time.monotonic()
    nodes = [Node(name, index) for index, name in enumerate(sys.argv[1:])]
    executor = SshExecutor(keep_s=int(os.environ.get("KEEP", "0")))
    async with open_fleet(executor, nodes, deadline_s=5.0, extra=SHIPPED) as fleet:
        answers = {}
        for name, session in fleet.sessions.items():
            answers[name] = dataclasses.asdict(await session.request("shipped.probes:place", {"variable": "USER"}))
        records = {record.node.name: dataclasses.asdict(record) for record in fleet.records}
    print(json.dumps({"records": records, "answers": answers, "took_s": time.monotonic() - began}))

anyio.run(main)
"""


@pytest.fixture
def head_environment() -> dict[str, str]:
    """The variables with which a program on the cluster's head can import preflight and the probes of
    tests/agent/shipped."""
    return {"PYTHONPATH": PATHS}


@pytest.fixture
def look(cluster: Cluster, head_environment: dict[str, str]) -> Callable[..., Any]:
    """Run LOOK on the cluster's head for some names, with further variables."""

    def run(*names: str, **variables: str) -> Any:
        done: subprocess.CompletedProcess[str] = cluster.head.run(
            [sys.executable, "-c", LOOK, *names], env={**head_environment, **variables}, timeout=30
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run
