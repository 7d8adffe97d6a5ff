"""Virtual nodes for the fault matrix, and heads with preflight already imported."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.cluster import Cluster
from tests.cluster.fixtures import cluster, gpu_cluster
from tests.end_to_end.head_command import ROOT, THIS_CHECKOUT, WarmHead

__all__ = ["cluster", "gpu_cluster", "head_of"]


@pytest.fixture(scope="module")
def head_of() -> Iterator[Callable[[Cluster], WarmHead]]:
    """The head of a cluster, started on first use."""
    heads: dict[int, WarmHead] = {}

    def found(chosen: Cluster) -> WarmHead:
        if chosen.head.pid not in heads or heads[chosen.head.pid].closed:
            heads[chosen.head.pid] = WarmHead(chosen, ROOT, THIS_CHECKOUT)
        return heads[chosen.head.pid]

    yield found
    for head in heads.values():
        head.close()
