"""Faults of virtual nodes, each a context manager that is undone at its end.

`with faults.drop_port(cluster.node("node3"), 29500): ...`
"""

from tests.cluster.faults.base import *  # noqa: F403
from tests.cluster.faults.devices import *  # noqa: F403
from tests.cluster.faults.files import *  # noqa: F403
from tests.cluster.faults.links import *  # noqa: F403
from tests.cluster.faults.services import *  # noqa: F403
