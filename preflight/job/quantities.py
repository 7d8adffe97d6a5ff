"""The vocabulary of claims: every quantity a source may state, with its type, unit and meaning.

A source states only these, or `env.NAME` for a variable the ranks will see. The quantities themselves stand in
`vocabulary/`, by subject.
"""

from __future__ import annotations

from preflight.job.quantity import Quantity
from preflight.job.vocabulary.cluster import CLUSTER
from preflight.job.vocabulary.context import CONTEXT
from preflight.job.vocabulary.frameworks import FRAMEWORKS
from preflight.job.vocabulary.loop import LOOP
from preflight.job.vocabulary.meeting import MEETING
from preflight.job.vocabulary.model import MODEL
from preflight.job.vocabulary.paddle import PADDLE
from preflight.job.vocabulary.ray import RAY
from preflight.job.vocabulary.scheduling import SCHEDULING
from preflight.job.vocabulary.script import SCRIPT
from preflight.job.vocabulary.servers import SERVERS
from preflight.job.vocabulary.sizes import SIZES
from preflight.job.vocabulary.starting import STARTING
from preflight.job.vocabulary.training import ACCELERATE, FSDP, TRAINING

ENVIRONMENT_PREFIX = "env."

QUANTITIES: dict[str, Quantity] = {
    quantity.name: quantity
    for subject in (
        STARTING,
        SCHEDULING,
        MEETING,
        SIZES,
        MODEL,
        SERVERS,
        SCRIPT,
        CONTEXT,
        TRAINING,
        ACCELERATE,
        FSDP,
        PADDLE,
        RAY,
        CLUSTER,
        LOOP,
        FRAMEWORKS,
    )
    for quantity in subject
}


def is_known(name: str) -> bool:
    """Whether a source may state this quantity."""
    return name in QUANTITIES or (name.startswith(ENVIRONMENT_PREFIX) and len(name) > len(ENVIRONMENT_PREFIX))
