"""The folders where the job writes checkpoints, their state on each node, and the size of a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

from preflight.analysis.model_size import is_megatron, model_parameters, shape_of, uses_less_memory
from preflight.model.job import Claim, Job, Known, Launch, Scope
from preflight_checks.probes.folders import FolderState, folder_state
from preflight_checks.probes.mounts import SHARED
from preflight_checks.requirements import known_int, scopes
from preflight_checks.storage.paths import for_each_path, on_a_node

#: Bytes of a parameter in a checkpoint: its 16-bit weight, and with Adam in mixed precision the 32-bit master weight,
#: momentum and variance (Rajbhandari et al., ZeRO, arXiv 1910.02054, section 3.1).
WEIGHT, STATES = 2, 12
#: Hugging Face's trainer without DeepSpeed keeps the two moments in the weights' own format, at least 16 bits each.
MOMENTS = 4
#: Options that leave parts out of a checkpoint.
_WEIGHTS_ONLY = ("--no-save-optim", "--save_only_model", "--save-only-model")
#: Launchers whose checkpoint size is known from the model's shape: by default they save mixed precision with Adam.
_SHAPES = ("arguments", "gpt-neox")


@dataclass(frozen=True, slots=True)
class Destination:
    """A folder for checkpoints, with the claims that name it. `sharded`: every rank writes its own part there."""

    path: str
    scope: Scope
    claims: tuple[Claim, ...]
    sharded: tuple[Claim, ...] = ()


def destinations(job: Job) -> tuple[Destination, ...]:
    """The folders that the job's launches write checkpoints to, without duplicates."""
    found: dict[str, Destination] = {}
    for scope in scopes(job):
        for claim in job.setting("checkpoint_path", scope):
            for path in claim.alternatives:
                if isinstance(path, str) and on_a_node(path):
                    found.setdefault(path, Destination(path, scope, (claim,), _sharding(job, scope)))
    return tuple(found.values())


def _sharding(job: Job, scope: Scope) -> tuple[Claim, ...]:
    """The claims that make every rank write its own part: ZeRO, a distributed optimizer, sharded FSDP."""
    claims: list[Claim] = []
    if (known_int(job, "zero_stage", scope) or 0) >= 1:
        claims.extend(job.setting("zero_stage", scope))
    for quantity, wanted in (
        ("distributed_optimizer", (True,)),
        ("fsdp_state_dict_type", ("SHARDED_STATE_DICT", "LOCAL_STATE_DICT")),
    ):
        found = job.setting(quantity, scope)
        claims.extend(claim for claim in found if isinstance(claim.value, Known) and claim.value.value in wanted)
    return tuple(claims)


plan_destinations = for_each_path(folder_state, destinations, quota=True)


def is_shared(state: FolderState) -> bool:
    """Whether other nodes see what one node writes there."""
    return state.file_system in SHARED


@dataclass(frozen=True, slots=True)
class CheckpointSize:
    """The least size of one checkpoint, how many are kept (None if unknown), and the claims for both."""

    each_bytes: int
    kept_count: int | None
    parameters: int
    claims: tuple[Claim, ...]
    states: bool


def checkpoint_size(job: Job, scope: Scope) -> CheckpointSize | None:
    """The least size of a checkpoint, by the model's shape or name; None if they are not certain."""
    launch = next((launch for launch in job.launches if launch.scope == scope), None)
    sized = _parameters(job, scope, launch)
    if sized is None:
        return None
    parameters, claims, per_state = sized
    if uses_less_memory(launch):
        # An adapter may be all that is saved.
        return None
    weights_only = _has_option(launch, _WEIGHTS_ONLY)
    each = parameters * (WEIGHT + (0 if weights_only else per_state))
    kept, more = _kept(job, scope)
    return CheckpointSize(each, kept, parameters, (*claims, *more), not weights_only)


def _parameters(job: Job, scope: Scope, launch: Launch | None) -> tuple[int, tuple[Claim, ...], int] | None:
    for source in _SHAPES:
        if source == "arguments" and (launch is None or not is_megatron(launch)):
            continue
        shape = shape_of(job, scope, source)
        if shape is not None:
            return shape.parameters, shape.claims[:3], STATES
    named = model_parameters(job, scope)
    if named is None or launch is None:
        return None
    return named[0], (named[1],), STATES if job.setting("zero_stage", scope) else MOMENTS


def _has_option(launch: Launch | None, options: tuple[str, ...]) -> bool:
    words = launch.arguments if launch is not None else ()
    return any(word is not None and word.partition("=")[0] in options for word in words)


def _kept(job: Job, scope: Scope) -> tuple[int | None, tuple[Claim, ...]]:
    """The number of checkpoints that exist at once; a new one is written before the oldest is deleted."""
    kept = known_int(job, "checkpoints_kept", scope)
    if kept is not None and kept > 0:
        return kept + 1, job.setting("checkpoints_kept", scope)
    steps, interval = known_int(job, "train_steps", scope), known_int(job, "save_interval", scope)
    if steps and interval and steps >= interval:
        return steps // interval, (*job.setting("train_steps", scope), *job.setting("save_interval", scope))
    return None, ()
