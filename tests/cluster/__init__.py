"""Virtual nodes with networks, ssh and faults, on one machine: `with Cluster(4) as cluster:`."""

from .cluster import Cluster
from .devices import Gpu, Gpus, Hca, NvmlError, hcas, roce_gids
from .namespace import ClusterError, NodeProcess
from .needs import needs
from .node import Node

__all__ = [
    "Cluster",
    "ClusterError",
    "Gpu",
    "Gpus",
    "Hca",
    "Node",
    "NodeProcess",
    "NvmlError",
    "hcas",
    "needs",
    "roce_gids",
]
