"""Checks that an injected fault was found, attributed to its target, and in time."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator

from preflight.agent import rank_events
from preflight.analysis.culprit import decision_time
from preflight.model.findings import Evidence, Severity, Status
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet
from preflight.model.requests import Request
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, unknown
from preflight_checks.smoke.injected_fault import DELAY_S, AppliedFault, Judge, applied_fault
from preflight_checks.smoke.plan import GroupRun, plan_smoke, run_of
from preflight_checks.smoke.results import wrong_collective_result
from preflight_checks.smoke.server_results import (
    servers_trained_nothing,
    updates_lost_doubled_or_stale,
    wrong_server_result,
)
from preflight_checks.smoke.server_run import PROBES, ServerRun, no_server_run_reason, plan_servers, server_run_of
from reference_trainer.collective.rank import rank as run_rank

#: Seconds from a fault to its report, for a death and a stop, with margin for a busy machine. Faults in results are
#: reported at the end of the run.
LIMIT_S = {"kill": 3.0, "stop": 15.0}
#: The same until a backup worker takes over: a worker that delays others gets 5 s, and all may wait for a barrier.
REPLACED_S = 15.0
_FAULT_TEXTS = {
    "kill": "was killed",
    "stop": "was stopped",
    "delay": "started to delay every step",
    "loss": "omitted its contribution",
    "double": "counted an update twice",
    "flip": "flipped a bit",
}
#: This many delays together must show in the waiting times of others: half of those in the exact phase.
_DELAYS = 10
#: The problem that the culprit is reported with.
_CULPRIT_PROBLEMS = {"kill": ("dead",), "stop": ("stopped", "stuck")}
#: The checks of results, without the note that an injected fault is expected.
_BY_RESULT: tuple[Judge, ...] = tuple(
    inspect.unwrap(check.judge)
    for check in (wrong_collective_result, wrong_server_result, updates_lost_doubled_or_stale, servers_trained_nothing)
)


def _plan(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    if fleet.smoke_options.injected_fault is not None:
        yield from plan_smoke(job, fleet, facts)
        yield from plan_servers(job, fleet, facts)


@check(
    "SMK031",
    "drill-not-named",
    plan=_plan,
    probes=(run_rank, *PROBES),
    cost="nothing besides the smoke run itself",
    when="smoke",
    severity=Severity.ERROR,
    evidence=(
        (
            "arXiv 2407.21783 (section 3.3.4): most interruptions of a large training run are a single process or node",
            "https://arxiv.org/abs/2407.21783",
        ),
    ),
)
def injected_fault_not_named(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """An injected fault is found and attributed to its target in time.

    What it checks: with `preflight smoke --inject-fault kill:worker1` and the like, one process of the run damages
    itself. The verdict must name exactly that process: a death within 3 s, a stop within 8 s, wrong results and delays
    by the end of the run. Findings of other checks caused by the fault count as information.

    Why it matters: it proves that on this site faults are detected through its nodes, network and limits, and shows
    what the report looks like.

    Example: `--inject-fault stop:rank2`: rank 2 on node-c was stopped at 4.1 s, and rank 0 on node-a was named.

    Fix: inspect what was named instead, and the load of the machine that preflight runs on.

    Known limits: a run with an injected fault is not a verdict about the nodes. Delays are visible only if others wait
    for the slow process, which asynchronous modes do not do.
    """
    fault = fleet.smoke_options.injected_fault
    if fault is None:
        yield not_applicable("injected fault", "no fault was injected")
        return
    found = applied_fault(fleet, facts)
    run: GroupRun = run_of(job, facts) if no_server_run_reason(job, fleet) else server_run_of(job, facts)
    if not run.records:
        yield unknown("injected fault", "the smoke run did not take place", required=True)
    elif found is None:
        yield unknown(
            "injected fault", f"no process could run {fault.option_text}: {_participants(run)} took part", required=True
        )
    elif found.at_s is None:
        what = f"; {run.culprit.because}" if run.culprit is not None else ""
        yield unknown(
            f"injected fault {fault.option_text}", f"{found.title} ended before the fault{what}", required=True
        )
    else:
        yield _judged(job, fleet, facts, run, found, found.at_s)


def _participants(run: GroupRun) -> str:
    numbers = Counter(member.role for member in run.members)
    return ", ".join(f"{role}s 0 to {count - 1}" if count > 1 else f"{role} 0" for role, count in numbers.items())


def _judged(job: Job, fleet: Fleet, facts: Facts, run: GroupRun, found: AppliedFault, at_s: float) -> Verdict:
    fault = found.fault
    began = f"injected fault: {found.title} {_FAULT_TEXTS[fault.kind]} at {at_s:.1f} s"
    if isinstance(run, ServerRun) and found.rank in run.replaced:
        return _replaced(run, found, at_s, began)
    if fault.kind in _CULPRIT_PROBLEMS:
        limit, named_s = LIMIT_S[fault.kind], decision_time(run.events, run.records)
        culprit = run.culprit
        right = culprit is not None and culprit.rank == found.rank and culprit.kind in _CULPRIT_PROBLEMS[fault.kind]
        if right and named_s - at_s <= limit:
            return passed(f"{began}; named {named_s - at_s:.1f} s later")
        if right:
            seen = f"named {named_s - at_s:.1f} s later"
            return _missed(found, f"{began}, and was {seen}; expected at most {limit:g} s", seen)
        seen = culprit.because if culprit is not None else "no process was named"
        return _missed(found, f"{began}; {seen}", seen)
    ended_s = max(record.finished_s for record in run.records) - at_s
    how = _delay_evidence(run, found) if fault.kind == "delay" else _result_finding(job, fleet, facts, found)
    if how:
        return passed(f"{began}; named when the run ended, {ended_s:.1f} s later: {how}")
    return _missed(found, f"{began}, and no finding at the end of the run names it", "no process was named")


def _replaced(run: ServerRun, found: AppliedFault, at_s: float, began: str) -> Verdict:
    """With a backup worker, a lost worker is not named during the run, which continues without it."""
    replacements = [
        e for e in run.events if e.data.get("event") == rank_events.REPLACED and e.data.get("worker") == found.rank
    ]
    after_s = min(event.at_s for event in replacements) - at_s
    backup = run.replaced[found.rank]
    who = f"{backup.name} on {backup.node}" if backup is not None else "a backup worker"
    if after_s <= REPLACED_S:
        return passed(f"{began}; {who} took its place {after_s:.1f} s later")
    seen = f"{who} took its place {after_s:.1f} s later"
    return _missed(found, f"{began}, and {seen}; expected at most {REPLACED_S:g} s", seen)


def _missed(found: AppliedFault, message: str, seen: str) -> Verdict:
    return failed(
        f"injected fault {found.fault.option_text}",
        message,
        at=Evidence("injected fault", seen, f"{found.title} is named", node=found.node, at_s=found.at_s),
        remedy="Check what was named instead, and the load of the machine that runs preflight.",
    )


def _result_finding(job: Job, fleet: Fleet, facts: Facts, found: AppliedFault) -> str:
    """The finding of a result check about the fault; empty if none names its target."""
    name = f"{found.role} {found.index}"
    for judge in _BY_RESULT:
        for verdict in judge(job, fleet, facts):
            if verdict.status is Status.FAIL and (found.node in verdict.nodes or name in verdict.processes):
                return verdict.message
    return ""


def _delay_evidence(run: GroupRun, found: AppliedFault) -> str:
    """The waiting times that show the delay; empty if they do not point at its target."""
    if isinstance(run, ServerRun):
        return _awaited_members(run, found)
    late = _last_to_enter(run, DELAY_S[found.role] / 2)
    if late and late.most_common(1)[0][0] == found.key and late[found.key] * 2 > sum(late.values()):
        return f"it entered {late[found.key]} collectives long after all other ranks"
    return ""


def _last_to_enter(run: GroupRun, least_s: float) -> Counter[str]:
    """How often each rank entered a collective last, at least this many seconds after the one before it."""
    entered: dict[int, dict[str, float]] = {}
    for event in run.events:
        number = event.data.get("collective")
        if event.data.get("event") == rank_events.ENTERING and isinstance(number, int):
            entered.setdefault(number, {})[event.request_key] = event.at_s
    late: Counter[str] = Counter()
    for times in entered.values():
        ordered = sorted(times, key=times.__getitem__)
        if len(ordered) == len(run.records) > 1 and times[ordered[-1]] - times[ordered[-2]] > least_s:
            late[ordered[-1]] += 1
    return late


def _awaited_members(run: ServerRun, found: AppliedFault) -> str:
    """The delay according to the waiting times of servers and workers."""
    if found.role == "worker":
        waited: dict[int, float] = {}
        for _, server in run.servers:
            for seen in server.seen:
                waited[seen.index] = max(waited.get(seen.index, 0.0), seen.waited_s)
        others = [seconds for index, seconds in waited.items() if index != found.index]
        own = waited.get(found.index, 0.0)
        if others and min(others) > own + _DELAYS * DELAY_S["worker"]:
            return f"the other workers waited {min(others):.1f} s for it, while it waited {own:.1f} s for them"
        return ""
    by_server: dict[int, float] = {}
    for _, worker in run.workers:
        for server_seen in worker.seen:
            by_server[server_seen.index] = by_server.get(server_seen.index, 0.0) + server_seen.waited_s
    own = by_server.pop(found.index, 0.0)
    if own > _DELAYS * DELAY_S["server"] and all(own > other for other in by_server.values()):
        return f"the workers waited {own:.1f} s for it"
    return ""
