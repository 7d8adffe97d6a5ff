"""Open MPI and MPICH on the virtual nodes: those of the machine, which can be hidden on one node."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .cluster import Cluster

__all__ = ["helper_gone"]


@contextmanager
def helper_gone(cluster: Cluster, name: str) -> Iterator[None]:
    """On this node MPI's helper programs cannot be run."""
    node = cluster.node(name)
    node.write_text("/run/nothing", "")
    covered = {str(Path(path).resolve()) for tool in ("orted", "hydra_pmi_proxy") if (path := shutil.which(tool))}
    for path in sorted(covered):
        node.must(["mount", "--bind", "/run/nothing", path])
    try:
        yield
    finally:
        for path in sorted(covered):
            node.must(["umount", "--lazy", path])
