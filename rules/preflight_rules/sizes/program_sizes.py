"""Sizes that a program, or the validator of a framework for reinforcement learning, refuses, as tables that one rule
each judges.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from preflight.model.findings import Severity
from preflight.model.job import Claim, Job, Launch, Plain, Scope, Unresolved, is_whole_number
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided, unknown
from preflight.plugins.claim_text import counted, placed, quoted
from preflight.sources.conditions import UnknownValue, evaluate, holds
from preflight_rules.data_tables import table
from preflight_rules.launches import ranks_started

_RANKS = "ranks"


class _Program(NamedTuple):
    """One row of the table."""

    name: str
    match: str
    needs: tuple[str, ...]
    options: dict[str, int]
    when: str
    at: str
    why: str
    remedy: str
    severity: str
    source: str


@functools.cache
def _programs() -> tuple[_Program, ...]:
    return tuple(_Program(**{**row, "needs": tuple(row["needs"])}) for row in table("programs")["program"])


@rule(
    "BAT025",
    "program-sizes-refused",
    severity=Severity.ERROR,
    otherwise="no launch starts a program whose sizes are known",
)
def program_sizes_refused(job: Job) -> Iterator[Verdict]:
    """A known program is given batch sizes or parallel degrees that do not fit the ranks that are started.

    What it checks: A table of programs (OpenRLHF's trainers, finetrainers, YOLOv5 and its like) with the options that
    they compute with, their defaults, and the condition under which they stop.

    Why it matters: The program compares its sizes with the number of ranks first of all, and every rank stops with an
    AssertionError or ValueError.

    Example: `deepspeed --num_gpus 7 --module openrlhf.cli.train_sft --train_batch_size 256 --micro_train_batch_size 2`.

    Fix: The finding names the numbers that have to divide each other.

    Known limits: A program that is known only by its options gets a warning.
    """
    for launch in job.launches:
        given = _options(launch)
        for row in _programs():
            if re.fullmatch(row.match, launch.program) is None or not all(name in given for name in row.needs):
                continue
            yield _judged(job, launch, row, given)


def _judged(job: Job, launch: Launch, row: _Program, given: dict[str, str | None]) -> Verdict:
    def value_of(name: str) -> int:
        if name == _RANKS:
            found = numbers(ranks_started(job, launch.scope)[0])
            if len(found) != 1:
                raise UnknownValue("the number of ranks")
            return int(found[0])
        if name not in given:
            if None in launch.arguments:
                raise UnknownValue(f"`--{name}` may be among the arguments")
            return row.options[name]
        text = given[name]
        if text is None or not is_whole_number(text.lstrip("-")):
            raise UnknownValue(f"the value of `--{name}`")
        return int(text)

    try:
        if not holds(row.when, value_of):
            return passed(launch.id)
    except UnknownValue as error:
        return unknown(launch.id, f"{row.name}: {error} is unknown", at=launch)
    value, because = ranks_started(job, launch.scope)
    written = next((w for w in launch.arguments if w and _bare(w.partition("=")[0]) == row.at), f"--{row.at}")
    shown = f"`{written}`" if "=" in written else f"`{written} {value_of(row.at)}`"
    shown += "" if row.at in given else f" (the default of {row.name})"
    return failed(
        launch.id,
        f"{shown} on {counted(int(numbers(value)[0]), 'rank')} {row.why}.",
        at=launch,
        also=tuple((claim, "ranks") for claim in because[:1]),
        remedy=row.remedy,
        severity=None if row.severity == "error" else Severity.WARNING,
    )


def _options(launch: Launch) -> dict[str, str | None]:
    """The options of a program by their bare names, with their values; None for one that is not known."""
    found: dict[str, str | None] = {}
    words = launch.arguments
    for index, word in enumerate(words):
        if word is None or not word.startswith("--"):
            continue
        name, equals, value = word[2:].partition("=")
        following = words[index + 1] if index + 1 < len(words) else None
        found[_bare(name)] = value if equals else following
    return found


def _bare(option: str) -> str:
    return option.lstrip("-").replace("-", "_")


@dataclass(frozen=True, slots=True)
class _Constraint:
    """A row of `data/rl_sizes.toml`, whose head describes the fields: a condition that a framework checks at start."""

    name: str
    frameworks: Sequence[str]
    quantities: Sequence[str]
    holds: str
    fault: str
    remedy: str
    optional: Sequence[str] = ()
    needs: Mapping[str, Sequence[Plain]] = field(default_factory=dict)
    excludes: Mapping[str, Plain] = field(default_factory=dict)
    computed: Mapping[str, str] = field(default_factory=dict)

    def with_computed(self, numbers_of: dict[str, int]) -> dict[str, int]:
        """The numbers of the quantities, and those that follow from them."""
        known = dict(numbers_of)
        for name, expression in self.computed.items():
            known[name] = evaluate(expression, known.__getitem__)
        return known


@functools.cache
def _constraints() -> tuple[_Constraint, ...]:
    return tuple(_Constraint(**row) for row in table("rl_sizes")["constraint"])


@rule("RLT001", "rl-sizes-refused", severity=Severity.ERROR, otherwise="no launch of such a framework sets these sizes")
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
        for constraint in _constraints():
            if not names & set(constraint.frameworks):
                continue
            verdict = _judged_constraint(job, launch, constraint)
            if verdict is not None:
                yield verdict


def _judged_constraint(job: Job, launch: Launch, constraint: _Constraint) -> Verdict | None:
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
    if undecided_verdict := undecided(subject, every, launch):
        return undecided_verdict
    combinations = []
    for quantity, found in claims.items():
        sizes = numbers(job_value(found)) if found else (1,)
        if not sizes or min(sizes) < 1:
            return unknown(subject, f"{quantity} is not a positive number", at=every[0])
        combinations.append([(quantity, size) for size in sizes])
    tried = [constraint.with_computed(dict(each)) for each in itertools.product(*combinations)]
    if any(holds(constraint.holds, each.__getitem__) for each in tried):
        return passed(subject)
    first = claims[constraint.quantities[0]][0]
    variant = bool(job.setting("framework_variant", scope))
    others = [claim for found in claims.values() for claim in found if claim is not first]
    return failed(
        subject,
        f"{quoted(first)}{_related_claims(others)}: {constraint.fault.format(**tried[0])}. {_effect_text(variant)}",
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
    return tuple(claim for claim in job.setting(quantity, scope) if not claim.scope.role)


def _certainly_has(job: Job, quantity: str, scope: Scope, values: Sequence[Plain]) -> bool:
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
