"""The fixtures of the virtual cluster, for its own tests."""

from .fixtures import cluster, gpu_cluster

__all__ = ["cluster", "gpu_cluster"]
