"""What most checks share: which facts they request from which nodes, and when they cannot or need not judge them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from preflight._util.sequences import grouped
from preflight.model.job import Claim, Job
from preflight.model.recording import Facts, Fleet, Observed, Unavailable
from preflight.model.requests import Request, probe_name
from preflight.plugins.authoring import JudgeFacts, PlanRequests, Verdict, not_applicable, unknown
from preflight_checks.requirements import fold, gpu_claims, is_multi_node

T = TypeVar("T")
#: Returns what a judgement needs; else yields the verdicts that say why there is nothing to judge, and returns None.
Gate: TypeAlias = Callable[[Job, Fleet, Facts], Generator[Verdict, None, "T | None"]]
JudgeGiven: TypeAlias = Callable[[Job, Fleet, Facts, T], Iterable[Verdict]]
Condition: TypeAlias = Callable[[Job, Fleet], object]
ClaimsOf: TypeAlias = Callable[[Job], tuple[Claim, ...]]
Params: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan that knows its probes, so that a check need not name them again."""

    probes: tuple[Callable[..., object], ...]
    requests: PlanRequests

    def __call__(self, job: Job, fleet: Fleet, facts: Facts) -> Iterable[Request]:
        """The requests for this job and these nodes."""
        return self.requests(job, fleet, facts)


def requests_for(*probes: Callable[..., object]) -> Callable[[PlanRequests], Plan]:
    """Decorator of a plan: the probes that its requests name."""
    return lambda requests: Plan(probes, requests)


def multi_node(job: Job, fleet: Fleet) -> bool:
    """The condition that the job runs on several machines."""
    return is_multi_node(fleet)


def several_nodes(job: Job, fleet: Fleet) -> bool:
    """The condition that the job has several nodes, even if all of them are one machine."""
    return len(fleet.nodes) > 1


def has_launches(job: Job, fleet: Fleet) -> bool:
    """The condition that the job's files start ranks."""
    return bool(job.launches)


def requests_gpus(job: Job, fleet: Fleet) -> bool:
    """The condition that the job needs GPUs."""
    return bool(gpu_claims(job))


def all_of(*conditions: Condition) -> Condition:
    """The condition that all of these hold."""
    return lambda job, fleet: all(condition(job, fleet) for condition in conditions)


@requests_for()
def no_requests(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    """The plan of a check that needs no facts from the nodes."""
    yield from ()


def on_every_node(
    *probes: Callable[..., object],
    params: Params | Callable[[Job], Params] | None = None,
    when: Condition | None = None,
    because: ClaimsOf | None = None,
    needed_by: ClaimsOf | None = None,
    context: bool = False,
    required: bool = False,
    deadline_s: float = 5.0,
) -> Plan:
    """A plan that requests these probes from every node that was reached, node by node.

    Args:
        params: what the probes are called with; a function where it depends on the job.
        when: requests nothing unless this condition holds.
        because: the claims that the requests cite.
        needed_by: the same, and nothing is requested when there are no such claims.
        context, required, deadline_s: as in `Request`.
    """
    claims_of = needed_by or because

    def plan(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
        if when is not None and not when(job, fleet):
            return
        claims = claims_of(job) if claims_of is not None else ()
        if needed_by is not None and not claims:
            return
        values = params(job) if callable(params) else params or {}
        for node in fleet.reached:
            for probe in probes:
                yield Request(
                    probe_name(probe),
                    node.name,
                    values,
                    context=context,
                    because=claims,
                    required=required,
                    deadline_s=deadline_s,
                )

    return Plan(probes, plan)


def combined(*plans: Plan, when: Condition | None = None) -> Plan:
    """A plan that makes the requests of all these plans, in this order, if `when` holds."""

    def plan(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
        if when is None or when(job, fleet):
            for part in plans:
                yield from part(job, fleet, facts)

    return Plan(tuple(dict.fromkeys(probe for part in plans for probe in part.probes)), plan)


def given(gate: Gate[T]) -> Callable[[JudgeGiven[T]], JudgeFacts]:
    """Decorator of a judgement that gets what `gate` returns as its last argument.

    Without it, the verdicts of the gate are all.
    """

    def decorate(judge: JudgeGiven[T]) -> JudgeFacts:
        @functools.wraps(judge)
        def judge_if_given(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
            value = yield from gate(job, fleet, facts)
            if value is not None:
                yield from judge(job, fleet, facts, value)

        return judge_if_given

    return decorate


def only_if(condition: Condition, subject: str, otherwise: str) -> Callable[[JudgeFacts], JudgeFacts]:
    """Decorator of a judgement that applies if this condition holds; `otherwise` says why it does not."""

    def decorate(judge: JudgeFacts) -> JudgeFacts:
        @functools.wraps(judge)
        def judge_if_applicable(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
            if condition(job, fleet):
                yield from judge(job, fleet, facts)
            else:
                yield not_applicable(subject, otherwise)

        return judge_if_applicable

    return decorate


def missing_facts(facts: Facts, probe: Callable[..., object], subject: str) -> Iterator[Verdict]:
    """One `unknown` for each reason why `probe` has no fact about some nodes, with the names of those nodes."""
    missing = grouped((why.reason, node) for node, why in facts.missing(probe))
    for reason, nodes in missing.items():
        yield unknown(f"{subject} on {fold(nodes)}", reason, nodes=nodes)


def known_facts(facts: Facts, probe: Callable[..., T], subject: str) -> Generator[Verdict, None, dict[str, T]]:
    """The values of `probe` by node; yields `missing_facts` for the other nodes."""
    yield from missing_facts(facts, probe, subject)
    return facts.observed(probe)


def facts_about(facts: Facts, probe: Callable[..., T], **params: object) -> tuple[dict[str, T], dict[str, Unavailable]]:
    """The values of `probe` by node for the requests with these parameters, and the reasons where there is none."""
    observed: dict[str, T] = {}
    missing: dict[str, Unavailable] = {}
    for seen in facts.each(probe):
        if any(seen.params.get(name) != value for name, value in params.items()):
            continue
        if isinstance(seen.fact, Observed):
            observed[seen.node] = seen.fact.value
        else:
            missing[seen.node] = seen.fact
    return observed, missing
