"""Sizes in reinforcement learning that a framework's own validator rejects, as a table that one rule judges."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from preflight.model.findings import Severity
from preflight.model.job import Claim, Job, Launch, Plain, Scope, Unresolved
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided, unknown
from preflight.plugins.claim_text import placed, quoted

_Numbers = dict[str, int]


@dataclass(frozen=True, slots=True)
class Constraint:
    """One condition that a framework checks at startup.

    Args:
        name: its subject, which the test cases use.
        frameworks: the frameworks whose validators check it.
        quantities: the quantities that must be known.
        optional: quantities that count as 1 if they are not given.
        holds: whether the numbers satisfy it.
        fault: a description of the fault.
        remedy: what to change.
        needs: quantities and their values; each must certainly have one of these.
        excludes: quantities with a value under which the condition does not apply; unknown counts as that value.
    """

    name: str
    frameworks: tuple[str, ...]
    quantities: tuple[str, ...]
    holds: Callable[[_Numbers], bool]
    fault: Callable[[_Numbers], str]
    remedy: str
    optional: tuple[str, ...] = ()
    needs: Mapping[str, tuple[Plain, ...]] = field(default_factory=dict)
    excludes: Mapping[str, Plain] = field(default_factory=dict)


_MODEL = ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size")
_ENGINE = ("rollout_tensor_parallel_size", "rollout_data_parallel_size", "rollout_pipeline_parallel_size")
_FSDP = {"rl_strategy": ("fsdp", "fsdp2")}


def _product(n: _Numbers, names: tuple[str, ...]) -> int:
    return math.prod(n[name] for name in names)


def _replicas(n: _Numbers) -> int:
    """The number of model replicas, at least one: ranks divided by all model-parallel sizes."""
    return max(1, n["world_size"] // _product(n, _MODEL))


def _share(n: _Numbers) -> int:
    """Responses of one optimizer step on one replica, as the workers compute it."""
    return n["update_batch_size"] * n["responses_per_prompt"] // _replicas(n)


def _responses(n: _Numbers) -> int:
    return n["prompts_per_step"] * n["responses_per_prompt"]


def _divides(size: int, whole: int) -> bool:
    return size > 0 and whole % size == 0


#: verl/utils/config.py (validate_config), verl/workers/config/actor.py, verl/workers/fsdp_workers.py and
#: megatron_workers.py at 0.7; EasyR1 0.3 (verl/trainer/ray_trainer.py); SkyRL 0.4 (skyrl/train/utils/utils.py,
#: validate_batch_sizes); NeMo-RL 0.5 (nemo_rl/models/policy/lm_policy.py); OpenRLHF 0.8
#: (openrlhf/cli/train_ppo_ray.py).
CONSTRAINTS: tuple[Constraint, ...] = (
    Constraint(
        "responses-over-ranks",
        ("verl",),
        ("prompts_per_step", "responses_per_prompt", "world_size"),
        lambda n: _divides(n["world_size"], _responses(n)),
        lambda n: (
            f"{n['prompts_per_step']} prompts x {n['responses_per_prompt']} responses = {_responses(n)} are not a"
            f" multiple of {n['world_size']} GPUs"
        ),
        "Use a train_batch_size whose product with rollout.n is a multiple of the number of GPUs.",
        needs=_FSDP,
        excludes={"dynamic_batch": True},
    ),
    Constraint(
        "update-larger-than-step",
        ("verl", "skyrl"),
        ("prompts_per_step", "update_batch_size"),
        lambda n: n["update_batch_size"] <= n["prompts_per_step"],
        lambda n: (
            f"a mini batch of {n['update_batch_size']} is larger than the {n['prompts_per_step']} of a whole step"
        ),
        "Make the mini batch at most as large as the training batch.",
        excludes={"dynamic_batch": True},
    ),
    Constraint(
        "updates-of-a-step",
        ("easyr1", "skyrl"),
        ("prompts_per_step", "update_batch_size"),
        lambda n: _divides(n["update_batch_size"], n["prompts_per_step"]),
        lambda n: (
            f"{n['prompts_per_step']} prompts of a step are not a multiple of a mini batch of {n['update_batch_size']}"
        ),
        "Use a mini batch that divides the batch of a step.",
    ),
    Constraint(
        "scores-of-a-step",
        ("easyr1",),
        ("prompts_per_step", "responses_per_prompt", "score_micro_batch_size_per_gpu"),
        lambda n: _divides(n["score_micro_batch_size_per_gpu"], _responses(n)),
        lambda n: (
            f"{_responses(n)} responses of a step are not a multiple of a micro batch of"
            f" {n['score_micro_batch_size_per_gpu']}"
        ),
        "Use a micro batch for experience that divides rollout_batch_size x rollout.n.",
    ),
    Constraint(
        "micro-batches-of-an-update",
        ("verl", "skyrl"),
        ("update_batch_size", "responses_per_prompt", "update_micro_batch_size_per_gpu", "world_size"),
        lambda n: _share(n) > 0 and _divides(n["update_micro_batch_size_per_gpu"], _share(n)),
        lambda n: (
            f"{n['update_batch_size']} x {n['responses_per_prompt']} responses of an update are {_share(n)} on each"
            f" of {_replicas(n)} replicas, not a multiple of the micro batch of {n['update_micro_batch_size_per_gpu']}"
        ),
        "Use a micro batch that divides mini batch x responses / replicas.",
        _MODEL,
        needs=_FSDP,
        excludes={"dynamic_batch": True},
    ),
    Constraint(
        "model-over-ranks",
        ("verl", "nemo-rl"),
        ("world_size",),
        lambda n: _divides(_product(n, _MODEL), n["world_size"]),
        lambda n: (
            f"{n['world_size']} GPUs are not a multiple of {_product(n, _MODEL)}, the GPUs that one replica needs"
        ),
        "Change the parallel sizes, or the number of GPUs.",
        _MODEL,
        excludes={"colocated": False, "dynamic_batch": True},
    ),
    Constraint(
        "engines-over-ranks",
        ("verl", "easyr1"),
        ("world_size", "rollout_tensor_parallel_size"),
        lambda n: _divides(_product(n, _ENGINE), n["world_size"]),
        lambda n: (
            f"{n['world_size']} GPUs are not a multiple of {_product(n, _ENGINE)}, the GPUs that one engine for"
            " generation needs"
        ),
        "Use a tensor_model_parallel_size for rollout that divides the number of GPUs.",
        _ENGINE[1:],
    ),
    Constraint(
        "engines-fill-ranks",
        ("openrlhf",),
        ("world_size", "rollout_engines"),
        lambda n: n["rollout_engines"] * n["rollout_tensor_parallel_size"] == n["world_size"],
        lambda n: (
            f"{n['rollout_engines']} engines of {n['rollout_tensor_parallel_size']} GPUs do not add up to the"
            f" {n['world_size']} GPUs of the actor, which they share"
        ),
        "Make vllm_num_engines x vllm_tensor_parallel_size equal to actor_num_nodes x actor_num_gpus_per_node.",
        ("rollout_tensor_parallel_size",),
        needs={"colocated": (True,)},
    ),
)


@rule(
    "RLT001",
    "rl-sizes-refused",
    severity=Severity.ERROR,
    otherwise="no launch of such a framework sets these sizes",
    evidence=("volcengine/verl#1191", "volcengine/verl#1785", "volcengine/verl#833", "the validators themselves"),
)
def rl_sizes_refused(job: Job) -> Iterator[Verdict]:
    """Sizes of batches, engines or replicas that the framework for reinforcement learning rejects at start.

    What it checks: What validators of verl, EasyR1, SkyRL, NeMo-RL and OpenRLHF check: the responses of a step are
    divided by the GPUs, an update is at most a step and is divided by its micro batches, GPUs are a multiple of what
    one replica and one engine need, and the engines that share the actor's GPUs use equally many.

    Why it matters: The program stops with an assertion after Ray has started on all nodes, often after the model was
    loaded.

    Example: `trainer.n_gpus_per_node=8 actor_rollout_ref.rollout.tensor_model_parallel_size=3`.

    Fix: The message names the numbers that do not fit; change one of them.

    Known limits: A custom program on top of one of these frameworks may skip the check, so it is a warning. With
    dynamic batches verl divides by tokens, and batch sizes are not judged. Values not set in the files are not judged.
    """
    for launch in job.launches:
        names = {str(value) for claim in job.about("training_framework", launch.scope) for value in claim.alternatives}
        for constraint in CONSTRAINTS:
            if not names & set(constraint.frameworks):
                continue
            verdict = _judged(job, launch, constraint)
            if verdict is not None:
                yield verdict


def _judged(job: Job, launch: Launch, constraint: Constraint) -> Verdict | None:
    """The verdict on one condition; None where it does not apply to the launch."""
    scope, subject = launch.scope, f"{launch.id} {constraint.name}"
    if any(claim.scope.role == "rollout" for claim in job.about("nodes") if claim.scope.launch == launch.id):
        return None  # Generation has GPUs of its own, and the validator is another one.
    claims: dict[str, tuple[Claim, ...]] = {}
    for quantity in (*constraint.quantities, *constraint.optional):
        claims[quantity] = _framework_claims(job, quantity, scope)
    if not all(claims[quantity] for quantity in constraint.quantities):
        return None
    if not all(_certainly_has(job, quantity, scope, values) for quantity, values in constraint.needs.items()):
        return None
    if not all(_certainly_not(job, quantity, scope, value) for quantity, value in constraint.excludes.items()):
        return None
    every = [claim for found in claims.values() for claim in found]
    undecided_verdict = undecided(subject, every, launch)
    if undecided_verdict is not None:
        return undecided_verdict
    combinations = []
    for quantity, found in claims.items():
        sizes = numbers(job_value(found)) if found else (1,)
        if not sizes or min(sizes) < 1:
            return unknown(subject, f"{quantity} is not a positive number", at=every[0])
        combinations.append([(quantity, size) for size in sizes])
    tried = [dict(each) for each in itertools.product(*combinations)]
    if any(constraint.holds(each) for each in tried):
        return passed(subject)
    first = claims[constraint.quantities[0]][0]
    variant = bool(job.setting("framework_variant", scope))
    others = [claim for found in claims.values() for claim in found if claim is not first]
    return failed(
        subject,
        f"{quoted(first)}{_related_claims(others)}: {constraint.fault(tried[0])}. {_effect_text(variant)}",
        at=first,
        also=tuple(others),
        remedy=constraint.remedy,
        severity=Severity.WARNING if variant else None,
    )


def _effect_text(variant: bool) -> str:
    if variant:
        return "The framework's own program fails at startup; this one may not check it."
    return "The program fails at startup."


def _related_claims(others: list[Claim]) -> str:
    """The remaining claims from files that a message depends on."""
    return f" with {', '.join(placed(claim) for claim in others)}" if others else ""


def _framework_claims(job: Job, quantity: str, scope: Scope) -> tuple[Claim, ...]:
    """The claims in force that the framework itself reads, without a scheduler's claims."""
    found = [claim for claim in job.setting(quantity, scope) if not claim.scope.role]
    return tuple(found)


def _certainly_has(job: Job, quantity: str, scope: Scope, values: tuple[Plain, ...]) -> bool:
    found = job.setting(quantity, scope)
    return bool(found) and all(
        bool(claim.alternatives) and all(value in values for value in claim.alternatives) for claim in found
    )


def _certainly_not(job: Job, quantity: str, scope: Scope, value: Plain) -> bool:
    """Whether a quantity certainly has another value."""
    return all(
        not isinstance(claim.value, Unresolved) and value not in claim.alternatives
        for claim in job.setting(quantity, scope)
    )
