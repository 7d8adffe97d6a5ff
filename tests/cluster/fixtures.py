"""The virtual cluster as pytest fixtures.

A conftest.py takes them by `from tests.cluster.fixtures import cluster, gpu_cluster`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from .cluster import Cluster
from .needs import needs

__all__ = ["cluster", "gpu_cluster", "require_virtual_nodes"]


def require_virtual_nodes() -> None:
    """Skip with the reason if virtual nodes are impossible; fail instead if CI=true."""
    reasons = needs()
    if not reasons:
        return
    message = f"virtual nodes are not possible here: {'; '.join(reasons)}"
    if os.environ.get("CI") == "true":
        pytest.fail(f"{message} (a failure and not a skip, because CI=true)", pytrace=False)
    pytest.skip(message)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Four nodes and a head, fresh for each test module."""
    require_virtual_nodes()
    with Cluster(4) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def gpu_cluster() -> Iterator[Cluster]:
    """Four nodes with two stub GPUs each, and a head, fresh for each test module."""
    require_virtual_nodes()
    with Cluster(4, gpus=2) as nodes:
        yield nodes
