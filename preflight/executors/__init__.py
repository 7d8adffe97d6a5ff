"""Ways to reach the nodes of a job: each gives a duplex channel to an agent on each node."""

from __future__ import annotations

#: The built-in executors, loaded by name when one is asked for.
PACK = ("preflight.executors.local:EXECUTOR", "preflight.executors.ssh:EXECUTOR")
