"""Helpers for most checks: the facts requested from each node, and the cases where these are missing or irrelevant."""

from __future__ import annotations

import fnmatch
import functools
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from packaging.version import InvalidVersion, Version

from preflight._util import toml
from preflight._util.sequences import grouped
from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job
from preflight.model.recording import Facts, Fleet, Observed, Unavailable
from preflight.model.requests import Request, probe_name
from preflight.plugins.authoring import JudgeFacts, PlanRequests, Verdict, check, not_applicable, unknown
from preflight_checks.requirements import fold, gpu_claims, is_multi_node, largest_value

T = TypeVar("T")
#: Returns what a judgement needs; else yields the verdicts that say why there is nothing to judge, and returns None.
Gate: TypeAlias = Callable[[Job, Fleet, Facts], Generator[Verdict, None, "T | None"]]
JudgeGiven: TypeAlias = Callable[[Job, Fleet, Facts, T], Iterable[Verdict]]
Condition: TypeAlias = Callable[[Job, Fleet], object]
ClaimsOf: TypeAlias = Callable[[Job], tuple[Claim, ...]]
Params: TypeAlias = Mapping[str, Any]
#: A check whose findings are likely and not certain.
warning_check = functools.partial(check, severity=Severity.WARNING, confidence=Confidence.MEDIUM)


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan that knows its probes, so that a check need not name them again."""

    probes: tuple[Callable[..., object], ...]
    requests: PlanRequests

    def __call__(self, job: Job, fleet: Fleet, facts: Facts) -> Iterable[Request]:
        """Return the requests for this job and these nodes."""
        return self.requests(job, fleet, facts)


def requests_for(*probes: Callable[..., object]) -> Callable[[PlanRequests], Plan]:
    """Return a decorator that records which probes the requests of a plan use."""
    return lambda requests: Plan(probes, requests)


def runs_on_several_machines(job: Job, fleet: Fleet) -> bool:
    """Return whether the job runs on several machines; a condition for plans and checks."""
    return is_multi_node(fleet)


def has_several_nodes(job: Job, fleet: Fleet) -> bool:
    """Return whether the job has several nodes, even if all of them are one machine; a condition."""
    return len(fleet.nodes) > 1


def has_launches(job: Job, fleet: Fleet) -> bool:
    """Return whether the job's files start ranks; a condition."""
    return bool(job.launches)


def requests_gpus(job: Job, fleet: Fleet) -> bool:
    """Return whether the job needs GPUs; a condition."""
    return bool(gpu_claims(job))


def all_of(*conditions: Condition) -> Condition:
    """Return the condition that all of these hold."""
    return lambda job, fleet: all(condition(job, fleet) for condition in conditions)


@requests_for()
def no_requests(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    """Yield nothing: the plan of a check that needs no facts from the nodes."""
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
    """Return a plan that requests these probes from every reached node, node by node.

    Args:
        params: the probes' parameters; a function if they depend on the job.
        when: requests nothing unless this condition holds.
        because: the claims that the requests cite.
        needed_by: like `because`, but without such claims nothing is requested.
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


def combine_plans(*plans: Plan, when: Condition | None = None) -> Plan:
    """Return a plan that makes the requests of all given plans, in this order, if `when` holds."""

    def plan(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
        if when is None or when(job, fleet):
            for part in plans:
                yield from part(job, fleet, facts)

    return Plan(tuple(dict.fromkeys(probe for part in plans for probe in part.probes)), plan)


def gated_by(gate: Gate[T]) -> Callable[[JudgeGiven[T]], JudgeFacts]:
    """Return a decorator that passes the gate's result to the check, or yields only the gate's verdicts."""

    def decorate(judge: JudgeGiven[T]) -> JudgeFacts:
        @functools.wraps(judge)
        def judge_if_given(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
            value = yield from gate(job, fleet, facts)
            if value is not None:
                yield from judge(job, fleet, facts, value)

        return judge_if_given

    return decorate


def only_if(condition: Condition, subject: str, otherwise: str) -> Callable[[JudgeFacts], JudgeFacts]:
    """Return a decorator for a check that applies only if this condition holds; otherwise it gives the reason."""

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
    """Yield one `unknown` per reason why `probe` has no fact about some nodes, with their names."""
    missing = grouped((why.reason, node) for node, why in facts.missing(probe))
    for reason, nodes in missing.items():
        yield unknown(f"{subject} on {fold(nodes)}", reason, nodes=nodes)


def known_facts(facts: Facts, probe: Callable[..., T], subject: str) -> Generator[Verdict, None, dict[str, T]]:
    """Return the values of `probe` by node; yield `missing_facts` for the other nodes."""
    yield from missing_facts(facts, probe, subject)
    return facts.observed(probe)


def facts_about(facts: Facts, probe: Callable[..., T], **params: object) -> tuple[dict[str, T], dict[str, Unavailable]]:
    """Return the values of `probe` by node, and the reasons for missing ones, for requests with these parameters."""
    observed: dict[str, T] = {}
    missing: dict[str, Unavailable] = {}
    for row in facts.each(probe):
        if any(row.params.get(name) != value for name, value in params.items()):
            continue
        if isinstance(row.fact, Observed):
            observed[row.node] = row.fact.value
        else:
            missing[row.node] = row.fact
    return observed, missing


# What a job uses of each node, the comparison of values and versions across nodes, and tables of known versions.


def table(name: str) -> dict[str, Any]:
    """Return the parsed contents of `data/NAME.toml`."""
    return toml.beside(__file__, f"data/{name}.toml")


@dataclass(frozen=True, slots=True)
class Group:
    """Variables with one policy (`agree`, `distinct` or `own`).

    Args:
        job_kinds: the kinds of jobs that they affect.
        values: if there are any, only variables with one of these values, in capitals, belong to it.
        breaks_protocol: ranks with different values cannot communicate.
    """

    kind: str
    patterns: tuple[str, ...]
    reason: str
    job_kinds: str = "any"
    severity: Severity = Severity.WARNING
    values: frozenset[str] = frozenset()
    breaks_protocol: bool = False


@functools.cache
def group_of(name: str, values: frozenset[str] = frozenset()) -> Group | None:
    """Return the first group with a pattern that matches `name` and one of the `values`; None if no group matches."""
    for group in groups():
        if group.values and group.values.isdisjoint(value.upper() for value in values):
            continue
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in group.patterns):
            return group
    return None


def default_of(name: str) -> str | None:
    """Return the value that applies if `name` is not set; None if unknown."""
    found = table("environment")["defaults"].get(name)
    return None if found is None else str(found)


@functools.cache
def groups() -> tuple[Group, ...]:
    """Return all groups, in order of precedence."""
    return tuple(
        Group(
            row["kind"],
            tuple(row["names"]),
            row["why"],
            row.get("of", "any"),
            Severity(row["severity"]) if "severity" in row else Severity.WARNING,
            frozenset(row.get("values", ())),
            row.get("breaks_protocol", False),
        )
        for row in table("environment")["group"]
    )


MIB, GIB, TIB = 2**20, 2**30, 2**40


def ranks_of_node(job: Job) -> tuple[int, tuple[Claim, ...]]:
    """Return the number of ranks per node, with the claims that give it; 1 if there are none."""
    return largest_value(job, "processes_per_node") or largest_value(job, "tasks_per_node") or (1, ())


def workers_of_rank(job: Job) -> tuple[int, tuple[Claim, ...]]:
    """Return the number of data loader workers per rank, with the claims that give it."""
    return largest_value(job, "dataloader_workers") or (0, ())


def processes_of_node(job: Job) -> tuple[int, tuple[Claim, ...]]:
    """Return the number of ranks per node plus their loader workers, with the claims that give it."""
    ranks, claims = ranks_of_node(job)
    workers, more = workers_of_rank(job)
    return ranks * (1 + workers), (*claims, *more)


def world_of(job: Job, fleet: Fleet) -> tuple[int, tuple[Claim, ...]]:
    """Return the number of ranks of the job: the number that the files give, or else ranks per node times nodes."""
    stated = largest_value(job, "world_size")
    if stated is not None:
        return stated
    ranks, claims = ranks_of_node(job)
    return ranks * max(1, len(fleet.nodes)), claims


def comparable_limit(value: int | None) -> float:
    """Return a limit as a comparable number; None means unlimited."""
    return float("inf") if value is None else value


def size(value: float | None) -> str:
    """Format bytes as `64 MiB`, `1.5 GiB` or `unlimited`."""
    if value is None or value == float("inf"):
        return "unlimited"
    if value >= GIB:
        return f"{value / TIB:.1f} TiB" if value >= TIB else f"{value / GIB:.1f} GiB"
    return f"{value / MIB:.0f} MiB" if value >= MIB or not value else f"{value / 1024:.0f} KiB"


@dataclass(frozen=True, slots=True)
class Split(Generic[T]):
    """The most common value, the nodes with other values, and whether more than half of the nodes have the common
    value.
    """

    common: T
    agreeing: tuple[str, ...]
    odd: dict[str, T]
    has_majority: bool

    @property
    def first_odd(self) -> tuple[str, T]:
        """The first node with another value, and that value, as an example. Needs at least one such node."""
        return next(iter(self.odd.items()))

    @property
    def description(self) -> str:
        """Return text that lists the odd nodes with their values and counts the others."""
        odd = fold(f"{node}: {value}" for node, value in self.odd.items())
        return f"{odd}; {len(self.agreeing)} {'node has' if len(self.agreeing) == 1 else 'nodes have'} {self.common}"


def split(values: Mapping[str, T]) -> Split[T] | None:
    """Return the values divided into common and odd ones; None without values. In a tie, the first node's value is
    common.
    """
    if not values:
        return None
    counts = Counter(values.values())
    common, most = counts.most_common(1)[0]
    agreeing = tuple(node for node, value in values.items() if value == common)
    odd = {node: value for node, value in values.items() if value != common}
    return Split(common, agreeing, odd, 2 * most > len(values))


#: The numbers at the start of the version of a kernel (`6.1.0-18-amd64`) or of a vendor's build.
_LEADING = re.compile(r"\d{1,9}(?:\.\d{1,9}){0,9}")


@functools.lru_cache(maxsize=1024)
def version_of(text: str) -> Version:
    """Return the version in `text`, or else the numbers at its start, or else 0."""
    try:
        return Version(text)
    except InvalidVersion:
        found = _LEADING.match(text.strip().lstrip("v"))
        return Version(found[0] if found else "0")


def minor_of(text: str) -> tuple[int, int]:
    """Return the major and minor number."""
    version = version_of(text)
    return version.major, version.minor


def short_version(text: str) -> str:
    """Return `2.4` for `2.4.1+cu124`."""
    return ".".join(map(str, minor_of(text)))
