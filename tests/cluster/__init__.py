"""Virtual nodes with networks, ssh and faults, on one machine: `with Cluster(4) as cluster:`."""

from .cluster import Cluster
from .gpus import Gpu, Gpus, NvmlError
from .namespace import ClusterError, NodeProcess
from .needs import needs
from .node import Node

__all__ = ["Cluster", "ClusterError", "Gpu", "Gpus", "Node", "NodeProcess", "NvmlError", "needs"]
