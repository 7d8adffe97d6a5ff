"""Checks that a short real training run on the job's nodes completes, and that an injected fault was found in time."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from preflight.agent import rank_events
from preflight.analysis.culprit import Culprit, decision_time
from preflight.analysis.link_matrix import Answer, Group, answer, next_groups
from preflight.analysis.rank_state import UNFINISHED
from preflight.model.findings import Evidence, Severity, Status
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet, Observed
from preflight.model.requests import Request
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, unknown
from preflight_checks.context.environment import protocol_differences
from preflight_checks.links.dial_requests import addresses_of
from preflight_checks.requirements import fold, nodes_share_machine
from preflight_checks.smoke.plan import (
    FACT,
    PLAN_PROBES,
    STEPS,
    GroupRun,
    MeetingPoint,
    SmokeRun,
    count,
    details,
    group_run_of,
    missing_run_verdict,
    numbered_ranks,
    observed_state,
    plan_of,
    plan_smoke,
    ranks_of,
    remedy_for_dead,
    run_of,
    smoke_check,
)
from preflight_checks.smoke.ranks import DELAY_S, AppliedFault, applied_fault, may_fail_by_injection
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
#: The time until a backup worker takes over: a worker that delays others gets 5 s, and all may wait for a barrier.
REPLACED_S = 15.0
_FAULT_TEXTS = {
    "kill": "was killed",
    "stop": "was stopped",
    "delay": "started to delay every step",
    "loss": "omitted its contribution",
    "double": "counted an update twice",
    "flip": "flipped a bit",
}
#: The waiting times of others must show this many delays in total: half of those in the exact phase.
_DELAYS = 10
#: The problem that the culprit is reported with.
_CULPRIT_PROBLEMS = {"kill": ("dead",), "stop": ("stopped", "stuck")}
#: The checks of results.
_RESULT_CHECKS = (wrong_collective_result, wrong_server_result, updates_lost_doubled_or_stale, servers_trained_nothing)


def _plan(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    if fleet.smoke_options.injected_fault is not None:
        yield from plan_smoke(job, fleet, facts)
        yield from plan_servers(job, fleet, facts)


@check("SMK031", "drill-not-named", plan=_plan, probes=(run_rank, *PROBES), when="smoke", severity=Severity.ERROR)
def injected_fault_not_named(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """An injected fault is found and attributed to its target in time.

    What it checks: with `preflight smoke --inject-fault kill:worker1` and the like, one process of the run damages
    itself. The verdict must name exactly that process: a death within 3 s, a stop within 8 s, wrong results and delays
    by the end of the run. Findings of other checks that the fault causes are informational.

    Why it matters: this proves that faults are detected at this site, with its nodes, network and limits, and shows
    what the report looks like.

    Example: `--inject-fault stop:rank2`: rank 2 on node-c was stopped at 4.1 s, and rank 0 on node-a was named.

    Fix: inspect the process that was named instead, and the load of the machine that preflight runs on.

    Known limits: a run with an injected fault is not a verdict on the nodes. Delays are visible only if others wait for
    the slow process, which asynchronous modes do not do.
    """
    fault = fleet.smoke_options.injected_fault
    if fault is None:
        yield not_applicable("injected fault", "no fault was injected")
        return
    applied = applied_fault(fleet, facts)
    run: GroupRun = run_of(job, facts) if no_server_run_reason(job, fleet) else server_run_of(job, facts)
    if not run.records:
        yield unknown("injected fault", "the smoke run did not start", required=True)
    elif applied is None:
        yield unknown(
            "injected fault", f"no process could run {fault.option_text}: {_participants(run)} took part", required=True
        )
    elif applied.at_s is None:
        what = f"; {run.culprit.because}" if run.culprit is not None else ""
        yield unknown(
            f"injected fault {fault.option_text}",
            f"{applied.title} ended before the fault was injected{what}",
            required=True,
        )
    else:
        yield _fault_verdict(job, fleet, facts, run, applied, applied.at_s)


def _participants(run: GroupRun) -> str:
    numbers = Counter(member.role for member in run.members)
    return ", ".join(f"{role}s 0 to {count - 1}" if count > 1 else f"{role} 0" for role, count in numbers.items())


def _fault_verdict(job: Job, fleet: Fleet, facts: Facts, run: GroupRun, applied: AppliedFault, at_s: float) -> Verdict:
    fault = applied.fault
    began = f"injected fault: {applied.title} {_FAULT_TEXTS[fault.kind]} at {at_s:.1f} s"
    if isinstance(run, ServerRun) and applied.rank in run.replaced:
        return _replacement_verdict(run, applied, at_s, began)
    if fault.kind in _CULPRIT_PROBLEMS:
        limit, named_s = LIMIT_S[fault.kind], decision_time(run.events, run.records)
        culprit = run.culprit
        right = culprit is not None and culprit.rank == applied.rank and culprit.kind in _CULPRIT_PROBLEMS[fault.kind]
        if right and named_s - at_s <= limit:
            return passed(f"{began}; named {named_s - at_s:.1f} s later")
        if right:
            seen = f"named {named_s - at_s:.1f} s later"
            return _missed_fault_verdict(applied, f"{began}, and was {seen}; expected at most {limit:g} s", seen)
        seen = culprit.because if culprit is not None else "no process was named"
        return _missed_fault_verdict(applied, f"{began}; {seen}", seen)
    ended_s = max(record.finished_s for record in run.records) - at_s
    how = _delay_evidence(run, applied) if fault.kind == "delay" else _result_finding(job, fleet, facts, applied)
    if how:
        return passed(f"{began}; named when the run ended, {ended_s:.1f} s later: {how}")
    return _missed_fault_verdict(
        applied, f"{began}, and no finding at the end of the run names it", "no process was named"
    )


def _replacement_verdict(run: ServerRun, applied: AppliedFault, at_s: float, began: str) -> Verdict:
    """Return the verdict for a run that continues with a backup worker and does not name the lost worker."""
    replacements = [
        e for e in run.events if e.data.get("event") == rank_events.REPLACED and e.data.get("worker") == applied.rank
    ]
    after_s = min(event.at_s for event in replacements) - at_s
    backup = run.replaced[applied.rank]
    who = f"{backup.name} on {backup.node}" if backup is not None else "a backup worker"
    if after_s <= REPLACED_S:
        return passed(f"{began}; {who} replaced it {after_s:.1f} s later")
    seen = f"{who} replaced it {after_s:.1f} s later"
    return _missed_fault_verdict(applied, f"{began}, and {seen}; expected at most {REPLACED_S:g} s", seen)


def _missed_fault_verdict(applied: AppliedFault, message: str, seen: str) -> Verdict:
    return failed(
        f"injected fault {applied.fault.option_text}",
        message,
        at=Evidence("injected fault", seen, f"{applied.title} is named", node=applied.node, at_s=applied.at_s),
        remedy="Check which process was named instead, and the load of the machine that runs preflight.",
    )


def _result_finding(job: Job, fleet: Fleet, facts: Facts, applied: AppliedFault) -> str:
    """Return a result check's finding about the fault; empty if none names its target."""
    name = f"{applied.role} {applied.index}"
    # With the injected fault, the checks would note in each message that the finding is expected.
    as_usual = replace(fleet, smoke_options=replace(fleet.smoke_options, injected_fault=None))
    for result in _RESULT_CHECKS:
        for verdict in result.judge(job, as_usual, facts):
            if verdict.status is Status.FAIL and (applied.node in verdict.nodes or name in verdict.processes):
                return verdict.message
    return ""


def _delay_evidence(run: GroupRun, applied: AppliedFault) -> str:
    """Return the waiting times that show the delay; empty if they do not point at its target."""
    if isinstance(run, ServerRun):
        return _awaited_members(run, applied)
    late = _last_to_enter(run, DELAY_S[applied.role] / 2)
    if late and late.most_common(1)[0][0] == applied.key and late[applied.key] * 2 > sum(late.values()):
        return f"it entered {late[applied.key]} collectives long after all other ranks"
    return ""


def _last_to_enter(run: GroupRun, least_s: float) -> Counter[str]:
    """Return how often each rank entered a collective last, at least this many seconds after the previous rank."""
    entry_times: dict[int, dict[str, float]] = {}
    for event in run.events:
        number = event.data.get("collective")
        if event.data.get("event") == rank_events.ENTERING and isinstance(number, int):
            entry_times.setdefault(number, {})[event.request_key] = event.at_s
    late_counts: Counter[str] = Counter()
    for times in entry_times.values():
        ordered = sorted(times, key=times.__getitem__)
        if len(ordered) == len(run.records) > 1 and times[ordered[-1]] - times[ordered[-2]] > least_s:
            late_counts[ordered[-1]] += 1
    return late_counts


def _awaited_members(run: ServerRun, applied: AppliedFault) -> str:
    """Return a description of how long others waited for the fault's target; empty if that does not show the delay."""
    if applied.role == "worker":
        waited_s: dict[int, float] = {}
        for _, server in run.servers:
            for seen in server.seen:
                waited_s[seen.index] = max(waited_s.get(seen.index, 0.0), seen.waited_s)
        others = [seconds for index, seconds in waited_s.items() if index != applied.index]
        own = waited_s.get(applied.index, 0.0)
        if others and min(others) > own + _DELAYS * DELAY_S["worker"]:
            return f"the other workers waited {min(others):.1f} s for it, but it waited {own:.1f} s for them"
        return ""
    by_server: dict[int, float] = {}
    for _, worker in run.workers:
        for server_seen in worker.seen:
            by_server[server_seen.index] = by_server.get(server_seen.index, 0.0) + server_seen.waited_s
    own = by_server.pop(applied.index, 0.0)
    if own > _DELAYS * DELAY_S["server"] and all(own > other for other in by_server.values()):
        return f"the workers waited {own:.1f} s for it"
    return ""


#: A trial meets, connects and sums, which takes a few seconds after torch is imported; a hanging trial is recognized
#: after as long again. If the run itself took longer to be recognized as hung, a trial gets that time and a margin.
TRIAL_S = 25.0
_MARGIN_S = 10.0
#: Steps of a trial for a run that hung before its first one.
_FEW_STEPS = 2


def _prefix(job: Job) -> str:
    return f"trial {job.name} "


def _group_name(job: Job, nodes: Group) -> str:
    return _prefix(job) + hashlib.sha256("\n".join(nodes).encode()).hexdigest()[:16]


def suspects_of(run: SmokeRun) -> tuple[str, ...] | None:
    """Return the nodes of uncertain culprits, which may only be waiting for others; None if no trial is needed."""
    culprit = run.culprit
    if culprit is None or culprit.kind != "stuck":
        return None
    by_rank = {int(record.request.params["rank"]): record.request.node for record in run.records}
    if culprit.rank is None:
        return ()
    return tuple(dict.fromkeys(by_rank[rank] for rank in (culprit.rank, *culprit.also) if rank in by_rank))


def plan_trials(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    """Yield the next groups to try after a hang that the ranks do not explain."""
    run = run_of(job, facts)
    suspects = suspects_of(run)
    if suspects is None or nodes_share_machine(fleet):
        return
    plan = plan_of(job, fleet, facts)
    by_name = {node.name: node for node in fleet.nodes}
    addresses = addresses_of(job, fleet, facts)
    min_size = 1 if plan.ranks_per_node > 1 else 2
    for group in next_groups(tuple(by_name), trials(job, facts), suspects=suspects, min_size=min_size):
        if not set(group) <= set(addresses):
            return
        meeting = MeetingPoint(addresses[group[0]], plan.meeting.port, f"the address of {group[0]}")
        for request in ranks_of(
            job,
            fleet,
            facts,
            [by_name[node] for node in group],
            _group_name(job, group),
            replace(plan, meeting=meeting),
            _extent(run),
            max(TRIAL_S, _lasted_s(run) + _MARGIN_S),
        ):
            yield replace(request, required=False)


def _lasted_s(run: SmokeRun) -> float:
    """Return how long the run lasted until its hang was detected, in seconds."""
    return decision_time(run.events, run.records) - min(record.started_s for record in run.records)


def _extent(run: SmokeRun) -> dict[str, object]:
    """Return how far a trial goes: past the phase of the hang, because a shorter trial would not show anything about
    it.
    """
    phase = run.culprit.phase if run.culprit is not None else ""
    if rank_events.position(phase) >= rank_events.position(rank_events.EXACT):
        return {"steps": run.records[0].request.params.get("steps", STEPS)}
    steps = STEPS if phase == rank_events.GROUP else _FEW_STEPS
    return {"steps": steps, "until": rank_events.EXACT}


def trials(job: Job, facts: Facts) -> dict[frozenset[str], bool | None]:
    """Return the result of each tried group: whether it passed; None if the trial did not start or finish."""
    groups: dict[str, tuple[set[str], list[bool | None]]] = {}
    for row in facts.each(run_rank):
        if row.asked.group.startswith(_prefix(job)):
            nodes, passed = groups.setdefault(row.asked.group, (set(), []))
            nodes.add(row.node)
            is_unknown = not isinstance(row.fact, Observed) and row.fact.kind in ("context", "missing", "unreachable")
            passed.append(None if is_unknown else isinstance(row.fact, Observed))
    return {
        frozenset(nodes): None if None in passed else all(passed) or _failed_or_unknown(facts, group)
        for group, (nodes, passed) in groups.items()
    }


def _failed_or_unknown(facts: Facts, group: str) -> bool | None:
    """Return False for a trial that hung or failed; None for a trial that was cut off before this was clear."""
    culprit = group_run_of(facts, group).culprit
    return None if culprit is None or culprit.kind == UNFINISHED else False


def answer_of(job: Job, fleet: Fleet, facts: Facts, run: SmokeRun) -> Answer | None:
    """Return the conclusion of the trials; None if none were needed."""
    suspects = suspects_of(run)
    if suspects is None:
        return None
    min_size = 1 if plan_of(job, fleet, facts).ranks_per_node > 1 else 2
    names = tuple(node.name for node in fleet.nodes)
    found = answer(names, trials(job, facts), suspects=suspects, min_size=min_size)
    if found is None or found.kind != "whole":
        return found
    # A node is to blame only if both runs of all nodes name it.
    again = group_run_of(facts, _group_name(job, names))
    named = again.nodes if again.culprit is not None and again.culprit.rank is not None else ()
    return replace(found, nodes=tuple(node for node in found.nodes if node in named) or names)


def describe(answer: Answer) -> str:
    """Return the conclusion as the end of a sentence about the run."""
    names = " and ".join(answer.nodes) if len(answer.nodes) == 2 else fold(answer.nodes)
    count = f"{answer.trials} smaller {'group' if answer.trials == 1 else 'groups'} tried"
    if answer.kind == "nodes":
        each = "hangs" if len(answer.nodes) == 1 else "hang each"
        text = f"{count}: {names} {each} even with a healthy node"
    elif answer.kind == "between":
        text = f"{count}: {names} hang together, but each of them works with another node"
    elif answer.kind == "group":
        text = f"{count}: {names} hang as a group, and no smaller group that was tried does"
    elif answer.kind == "whole":
        smaller = f"{count}: none of these hangs, but " if answer.trials else ""
        text = f"{smaller}all nodes together hang again"
    elif answer.kind == "every":
        text = f"{count}: all of them hang, so they do not show which node is at fault"
    elif answer.kind == "none":
        smaller = f"{count}: none of these hangs, and " if answer.trials else ""
        text = f"{smaller}all nodes together completed when tried again: the fault may be intermittent"
    else:
        parts = [f"{' and '.join(group) if len(group) < 3 else fold(group)} hang together" for group in answer.hanging]
        parts += [f"{fold(answer.sound)} completed one"] if answer.sound else []
        text = f"{count}: {', '.join(parts)}" if parts else "no trial with a smaller group finished"
    notes = [
        f"{what}: {fold([_group_text(group) for group in groups], 4)}"
        for what, groups in (("not finished", answer.unfinished), ("not tried", answer.untried))
        if groups
    ]
    return "; ".join((text, *notes))


def _group_text(group: Group) -> str:
    """Return `node1 with node2`; a larger group as a range."""
    return " with ".join(group) if len(group) == 2 else fold(group)


@smoke_check("SMK001", "rank-did-not-finish", follow_up=plan_trials, reads=PLAN_PROBES, severity=Severity.ERROR)
@may_fail_by_injection("kill", "stop")
def rank_did_not_finish(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Every rank of a short training run on the job's nodes completes.

    What it checks: one rank for each GPU that the job uses on each node (without GPUs as many as a Gloo job starts, at
    most one per core, otherwise one per node) joins at the job's own master endpoint, sums known tensors and trains ten
    steps, in the job's own interpreter and environment. If some do not complete, the rank that the others wait for is
    named: missing, dead, stopped, stuck, or lost with its node. If the ranks do not explain a hang, smaller groups are
    tried for the same time again (--smoke-deadline): halves of the nodes until the smallest hanging group is found; or
    the suspects together, the others without them, and each suspect with another node; or all nodes again if none of
    these hangs. Groups that were not tried or not finished are named.

    Why it matters: a rank that is missing or stuck leaves all others silent for up to 30 minutes, and none of
    their messages names it.

    Example: rank 3 on node-b was killed by SIGKILL (out of memory) while summing; ranks 0 to 2 lost their
    connections because of it.

    Fix: examine the named node and rank first; the evidence contains its stack or last output.

    Known limits: the model is small; memory and bandwidth of the real job are not tested. Not every group of nodes is
    tried, so a fault may involve more nodes than the smallest hanging group, or fewer.
    """
    run = run_of(job, facts)
    early = missing_run_verdict(job, fleet, run)
    if early is not None:
        yield early
        return
    if run.complete:
        yield passed(_summary(job, fleet, facts, run))
        return
    if run.culprit is None:
        silent = [r.request.node for r in run.records if r.unavailable is not None]
        reasons = dict.fromkeys(r.unavailable.reason for r in run.records if r.unavailable is not None)
        text = f"ranks on {fold(silent)} did not finish: {fold(reasons, 2)}"
        yield unknown("smoke run", text, nodes=silent, required=True)
        return
    if run.culprit.kind == UNFINISHED:
        yield unknown("smoke run", run.culprit.because, nodes=run.nodes, required=True)
        return
    if run.culprit.kind == "endpoint":
        yield unknown("smoke run", f"blocked by SMK004: {run.culprit.because}")
        return
    answer = answer_of(job, fleet, facts, run)
    if answer is not None and (answer.kind == "none" or _is_cleared(run, run.culprit, answer)):
        # A failure that did not repeat blames no node, but does not count as a pass.
        yield unknown("smoke run", f"{run.culprit.because}; {describe(answer)}", required=True)
        return
    differing = protocol_differences(job, facts) if run.culprit.kind in ("dead", "stuck") else {}
    if differing:
        yield _protocol_difference_verdict(run, run.culprit, differing)
        return
    yield _culprit_finding(run, run.culprit, answer)
    undecided = _undecided_nodes(run, run.culprit, answer)
    if undecided:
        text = (
            "no group completed the smoke run with this node"
            if len(undecided) == 1
            else "no group completed with any of these nodes"
        )
        yield unknown(f"smoke run: {fold(undecided)}", text, nodes=undecided, required=True)


def _is_cleared(run: SmokeRun, culprit: Culprit, answer: Answer) -> bool:
    """Return whether the named nodes completed trials, nothing hung again, and time ran out before further trials."""
    return (
        answer.kind == "open" and culprit.rank is not None and not answer.hanging and set(run.nodes) <= {*answer.sound}
    )


def _protocol_difference_verdict(run: SmokeRun, culprit: Culprit, differing: Mapping[str, Sequence[str]]) -> Verdict:
    """Return the verdict on ranks that use different protocols, of which the first to hang or crash need not be at
    fault.
    """
    names, nodes = fold(differing), tuple(dict.fromkeys(node for found in differing.values() for node in found))
    where = (
        f"on {fold(nodes)}" if len(nodes) < len({record.request.node for record in run.records}) else "between nodes"
    )
    return failed(
        "smoke run",
        f"{names} differs {where} (ENV020), which is the likely cause: {culprit.because}",
        at=Evidence(FACT, observed_state(culprit), "every rank completes", node=culprit.node, at_s=culprit.since_s),
        also=(*details(run, culprit, FACT), *run.claims),
        nodes=nodes,
        remedy=f"Set {names} to the same value on every node, then run again.",
        waits_at=_WAITS_AT.get(culprit.kind, ""),
    )


def _undecided_nodes(run: SmokeRun, culprit: Culprit, answer: Answer | None) -> tuple[str, ...]:
    """Return the unnamed nodes of an unexplained hang that completed no trial."""
    if answer is None or culprit.kind != "stuck" or answer.kind in ("nodes", "between"):
        return ()
    every = dict.fromkeys(record.request.node for record in run.records)
    return tuple(node for node in every if node not in {*_nodes(run, answer), *answer.sound})


def _nodes(run: SmokeRun, answer: Answer | None) -> tuple[str, ...]:
    """Return the nodes to name: those that the trials found, or else those that the run found."""
    if answer is not None and answer.kind in ("nodes", "between", "group", "whole"):
        return answer.nodes
    if answer is None or answer.kind != "open":
        return run.nodes
    hanging = tuple(dict.fromkeys(node for group in answer.hanging for node in group))
    return tuple(node for node in run.nodes if node not in answer.sound) or hanging or run.nodes


def _summary(job: Job, fleet: Fleet, facts: Facts, run: SmokeRun) -> str:
    report = run.reports[0][1]
    plan = plan_of(job, fleet, facts)
    nodes = len({node for node, _ in run.reports})
    where = f"{count(report.world_size)} on {f'{nodes} nodes' if nodes > 1 else 'one node'}"
    paddle = f"{report.framework} over " if report.framework.startswith("paddle") else ""
    return f"smoke run: {where}, {paddle}{report.backend} ({plan.ranks_reason}; rendezvous at {plan.meeting.source})"


_REMEDIES = {
    "missing": "Find out why no rank starts on {node}: check the job's interpreter and environment there.",
    "stopped": "Continue or end the stopped process on {node} (kill -CONT), and find out what stopped it.",
    "stuck": "Read the stack of the rank on {node} in the evidence: it shows what the rank waits for.",
    "lost-node": "Check whether {node} is still running and reachable.",
    "mismatch": "Stop processes of earlier runs that still listen on the master port, or choose another port.",
}


#: Problems of a rank for which all others wait. When one dies, its launcher ends the others.
_WAITS_AT = {"missing": "rendezvous", "stopped": "collective", "stuck": "collective", "lost-node": "collective"}


def _culprit_finding(run: SmokeRun, culprit: Culprit, answer: Answer | None) -> Verdict:
    tried = f"; {describe(answer)}" if answer is not None else ""
    remedy = _REMEDIES.get(culprit.kind, "Check {node}.").format(node=culprit.node)
    if culprit.kind == "dead":
        remedy = remedy_for_dead(run, culprit)
    if culprit.rank is None and culprit.kind == "stuck":
        remedy = (
            "Check the path between the nodes: MTU for large packets, firewalls for high ports, and the interface "
            "that each rank uses. The link checks test each pair separately."
        )
    subject = f"rank {culprit.rank} on {culprit.node}" if culprit.rank is not None else "smoke run"
    waiting = (
        f"; {numbered_ranks(culprit.waiting)} could not continue because of it"
        if culprit.waiting and culprit.rank is not None
        else ""
    )
    return failed(
        subject,
        f"{culprit.because}{waiting}{tried}",
        at=Evidence(FACT, observed_state(culprit), "every rank completes", node=culprit.node, at_s=culprit.since_s),
        also=(*details(run, culprit, FACT), *run.claims),
        nodes=_nodes(run, answer),
        remedy=remedy,
        waits_at=_WAITS_AT.get(culprit.kind, ""),
    )


@smoke_check("SMK004", "master-endpoint-unusable", severity=Severity.ERROR)
def master_endpoint_unusable(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Rank 0 can listen on the master port, and all ranks can reach it there and through the process group.

    What it checks: rank 0 binds the port before torch is imported; every rank connects to it with plain TCP from inside
    the job context, so that refused, dropped and unresolvable are distinguished; and no rank advertises loopback to the
    others.

    Why it matters: all of these look the same in torch: silence, then a timeout that names no rank.

    Example: rank 0 on node-a must be the master, but cannot listen on port 29500: Address already in use.

    Fix: end the process that uses the port or choose another port; open the port between the nodes; make every node's
    name resolve to an address that the others can reach, or select an interface.

    Known limits: none known.
    """
    run = run_of(job, facts)
    early = missing_run_verdict(job, fleet, run)
    if early is not None:
        yield early if not early.required else unknown("master endpoint", "blocked by SMK001: no rank ran")
        return
    culprit = run.culprit
    if culprit is None or culprit.kind != "endpoint":
        dialled = [e for e in run.events if e.data.get("event") == "dial" and e.data.get("result") == "open"]
        if run.complete or len({e.request_key for e in dialled}) == len(run.records):
            meeting = plan_of(job, fleet, facts).meeting
            yield passed(f"master endpoint: {meeting.spelling}, reached by {count(len(run.records))}")
        else:
            yield unknown("master endpoint", "blocked by SMK001: not all ranks reached this phase")
        return
    plan = plan_of(job, fleet, facts)
    yield failed(
        f"master endpoint {plan.meeting.spelling}",
        f"{culprit.because} ({plan.meeting.source})",
        at=Evidence(
            FACT, culprit.because, "every rank opens the master's port", node=culprit.node, at_s=culprit.since_s
        ),
        also=run.claims,
        nodes=run.nodes,
        remedy=(
            f"Check which process uses port {plan.meeting.port} on {culprit.node} (ss -ltnp), whether the port is "
            f"open between the nodes, and what {plan.meeting.host} resolves to on each node."
        ),
    )
