"""Virtual nodes for the end-to-end tests, with ranks that need not import torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.cluster.fixtures import cluster, gpu_cluster
from tests.cluster.namespace import base_environment
from tests.warm_python import warm_python

__all__ = ["cluster", "gpu_cluster", "warm"]


@pytest.fixture(scope="module")
def warm(cluster: Cluster) -> str:
    """An interpreter for `check(..., python=warm)`, which sessions on the nodes find as `python3`, too.

    Agents and ranks that it runs are forked from one process that has imported torch.
    """
    python = warm_python()
    path = f"{Path(python).parent}:{base_environment()['PATH']}"
    for node in cluster.nodes:
        node.stop_sshd()
        node.start_sshd({"PATH": path})
    return python
