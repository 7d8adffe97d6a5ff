"""Ways to reach the nodes of a job: each gives a duplex channel to an agent on each node."""

from __future__ import annotations

#: The built-in executors, loaded by name when one is asked for. Where preflight runs inside several at once (a Slurm
#: job that is a pod of Kubernetes), the first that recognises it is taken.
PACK = (
    "preflight.executors.local:EXECUTOR",
    "preflight.executors.slurm:EXECUTOR",
    "preflight.executors.mpi:EXECUTOR",
    "preflight.executors.ssh:EXECUTOR",
    "preflight.executors.kubernetes:EXECUTOR",
    "preflight.executors.ray:EXECUTOR",
    "preflight.executors.replay:EXECUTOR",
)
