"""The vocabulary of claims: every quantity a source may state, with its type, unit and meaning.

A source states only these, or `env.NAME` for a variable the ranks will see, or `setting.FRAMEWORK.KEY` for a key of a
framework's configuration as it is written there. The quantities themselves are in
`vocabulary/`, by subject.
"""

from __future__ import annotations

from preflight._util.suggest import nearest
from preflight.model.job.quantity import Quantity
from preflight.model.job.vocabulary.cluster import CLUSTER
from preflight.model.job.vocabulary.counts import STARTING
from preflight.model.job.vocabulary.endpoints import MEETING
from preflight.model.job.vocabulary.framework_options import FRAMEWORKS
from preflight.model.job.vocabulary.loop import LOOP
from preflight.model.job.vocabulary.model_shape import MODEL
from preflight.model.job.vocabulary.paddle import PADDLE
from preflight.model.job.vocabulary.rank_context import CONTEXT
from preflight.model.job.vocabulary.ray import RAY
from preflight.model.job.vocabulary.reinforcement import REINFORCEMENT
from preflight.model.job.vocabulary.script import SCRIPT
from preflight.model.job.vocabulary.servers import SERVERS
from preflight.model.job.vocabulary.sizes import SIZES
from preflight.model.job.vocabulary.slurm_policy import SCHEDULING
from preflight.model.job.vocabulary.trainer import ACCELERATE, FSDP, TRAINING

ENVIRONMENT_PREFIX = "env."
SETTING_PREFIX = "setting."
#: The value of a setting that is a section with keys of its own.
SECTION = ("{...}",)
#: Stands for each section in the value of a list of sections.
LISTED_SECTION = "{listed}"

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
        REINFORCEMENT,
    )
    for quantity in subject
}


class UnknownQuantity(LookupError):
    """A rule or check asked for a quantity that no source states; the message has the nearest name."""


def check_known(name: str) -> None:
    """Raise UnknownQuantity for a misspelt name; it would otherwise look like a value that the files do not state."""
    if is_known(name):
        return
    near = nearest(name, QUANTITIES)
    hint = f"did you mean {near!r}?" if near else "`preflight quantities` lists them"
    raise UnknownQuantity(f"unknown quantity {name!r}; {hint}")


def is_known(name: str) -> bool:
    """Whether a source may state this quantity."""
    return name in QUANTITIES or any(
        name.startswith(prefix) and len(name) > len(prefix) for prefix in (ENVIRONMENT_PREFIX, SETTING_PREFIX)
    )
