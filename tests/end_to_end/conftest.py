"""Virtual nodes for the end-to-end tests."""

from tests.cluster.fixtures import cluster, gpu_cluster

__all__ = ["cluster", "gpu_cluster"]
