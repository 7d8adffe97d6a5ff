"""Virtual nodes with networks, ssh and faults, on one machine: `with Cluster(4) as cluster:`."""

from .cluster import Cluster
from .gpus import Gpu, Gpus, NvmlError
from .namespace import ClusterError, NodeProcess
from .needs import needs
from .node import Node
from .rdma import Hca, hcas, roce_gids

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
