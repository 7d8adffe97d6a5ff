"""Whether a fault that the user had the smoke run play was found, laid to whoever played it, and how fast."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from preflight.culprit import decision_time
from preflight.job import Job
from preflight.judgement import Verdict, check, failed, not_applicable, passed, unknown
from preflight.outcome import Evidence, Severity, Status
from preflight.recording import Facts, Fleet
from preflight.request import Request
from preflight_checks.smoke.drilled import DELAY_S, Judge, Played, played
from preflight_checks.smoke.gang_run import GangRun
from preflight_checks.smoke.server_plan import no_servers, plan_servers
from preflight_checks.smoke.server_results import (
    servers_trained_nothing,
    updates_lost_doubled_or_stale,
    wrong_server_result,
)
from preflight_checks.smoke.server_run import PROBES, ServerRun, server_run_of
from preflight_checks.smoke.smoke_plan import plan_smoke
from preflight_checks.smoke.smoke_results import wrong_collective_result
from preflight_checks.smoke.smoke_run import run_of
from reference_trainer import phases
from reference_trainer.collective import rank as run_rank

#: Seconds from the fault to its name: of a death, of a stop, and with room for a busy head. What shows in results is
#: named at the end of the run.
LIMIT_S = {"kill": 3.0, "stop": 8.0}
#: The same until a spare worker has its place: who only holds others up is given 5 s, and all may wait for a barrier.
REPLACED_S = 15.0
_DONE = {
    "kill": "was killed",
    "stop": "was stopped",
    "delay": "began to delay every step",
    "loss": "left its contribution out",
    "double": "counted an update twice",
    "flip": "flipped a bit",
}
#: So many delays together have to show in how long others waited: half of those that the exact phase has.
_DELAYS = 10
#: How whoever is to blame is called after that.
_NAMED_AS = {"kill": ("dead",), "stop": ("stopped", "stuck")}
_BY_RESULT: tuple[Judge, ...] = (
    wrong_collective_result.judge,
    wrong_server_result.judge,
    updates_lost_doubled_or_stale.judge,
    servers_trained_nothing.judge,
)


def _plan(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    if fleet.wish.drill is not None:
        yield from plan_smoke(job, fleet, facts)
        yield from plan_servers(job, fleet, facts)


@check(
    "SMK031",
    "drill-not-named",
    plan=_plan,
    probes=(run_rank, *PROBES),
    cost="nothing beside the smoke run itself",
    when="smoke",
    severity=Severity.ERROR,
    evidence=("https://arxiv.org/abs/2407.21783",),
)
def drill_not_named(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """A fault that the user asks the smoke run to play is found, and laid to whoever played it, in time.

    What it checks: with `preflight smoke --drill kill:worker1` and its like one process of the run harms itself. The
    others' verdict must name that very process: a death within 3 s, a stop within 8 s, wrong results and delays by the
    end of the run. What the other checks find because of the drill counts as information.

    Why it matters: a site that has seen a fault named once knows what to look for, and that its nodes, its network and
    its limits let the news through.

    Example: drill stop:rank2: rank 2 on node-c was stopped at 4.1 s, and rank 0 on node-a was named.

    Fix: look at what was named instead, and at the load of the machine that preflight runs on.

    Known limits: a drilled run is no verdict about the nodes. Delays are seen where others wait for the slow one: not
    in asynchronous modes.

    Evidence: arXiv 2407.21783 (section 3.3.4): most interruptions of a large training run are a single process or node.
    """
    drill = fleet.wish.drill
    if drill is None:
        yield not_applicable("drill", "no drill was asked for")
        return
    found = played(fleet, facts)
    run: GangRun = run_of(job, facts) if no_servers(job, fleet) else server_run_of(job, facts)
    if not run.records:
        yield unknown("drill", "the smoke run did not take place", required=True)
    elif found is None:
        yield unknown("drill", f"nobody could play {drill.spelled}: {_who(run)} took part", required=True)
    elif found.at_s is None:
        what = f"; {run.blamed.because}" if run.blamed is not None else ""
        yield unknown(f"drill {drill.spelled}", f"{found.title} did not come as far as playing it{what}", required=True)
    else:
        yield _judged(job, fleet, facts, run, found, found.at_s)


def _who(run: GangRun) -> str:
    numbers = Counter(member.role for member in run.members)
    return ", ".join(f"{role}s 0 to {count - 1}" if count > 1 else f"{role} 0" for role, count in numbers.items())


def _judged(job: Job, fleet: Fleet, facts: Facts, run: GangRun, found: Played, at_s: float) -> Verdict:
    drill = found.drill
    began = f"drill: {found.title} {_DONE[drill.kind]} at {at_s:.1f} s"
    if isinstance(run, ServerRun) and found.rank in run.replaced:
        return _replaced(run, found, at_s, began)
    if drill.kind in _NAMED_AS:
        limit, named_s = LIMIT_S[drill.kind], decision_time(run.events, run.records)
        blamed = run.blamed
        right = blamed is not None and blamed.rank == found.rank and blamed.kind in _NAMED_AS[drill.kind]
        if right and named_s - at_s <= limit:
            return passed(f"{began}; named {named_s - at_s:.1f} s later")
        if right:
            seen = f"named {named_s - at_s:.1f} s later"
            return _missed(found, f"{began}, and was {seen}; at most {limit:g} s was expected", seen)
        seen = blamed.because if blamed is not None else "nobody was named"
        return _missed(found, f"{began}; {seen}", seen)
    ended_s = max(record.finished_s for record in run.records) - at_s
    how = _by_delay(run, found) if drill.kind == "delay" else _by_result(job, fleet, facts, found)
    if how:
        return passed(f"{began}; named when the run ended, {ended_s:.1f} s later: {how}")
    return _missed(found, f"{began}, and nothing at the end of the run says so", "nobody was named")


def _replaced(run: ServerRun, found: Played, at_s: float, began: str) -> Verdict:
    """Where a spare worker waits, whoever is lost is not named in the midst of the run: it goes on without."""
    told = [e for e in run.events if e.data.get("event") == phases.REPLACED and e.data.get("worker") == found.rank]
    after_s = min(event.at_s for event in told) - at_s
    spare = run.replaced[found.rank]
    who = f"{spare.name} on {spare.node}" if spare is not None else "a spare worker"
    if after_s <= REPLACED_S:
        return passed(f"{began}; {who} took its place {after_s:.1f} s later")
    seen = f"{who} took its place {after_s:.1f} s later"
    return _missed(found, f"{began}, and {seen}; at most {REPLACED_S:g} s was expected", seen)


def _missed(found: Played, message: str, seen: str) -> Verdict:
    return failed(
        f"drill {found.drill.spelled}",
        message,
        at=Evidence("drill", seen, f"{found.title} is named", node=found.node, at_s=found.at_s),
        nodes=(found.node,),
        remedy="Look at what was named instead, and at the load of the machine that preflight runs on.",
    )


def _by_result(job: Job, fleet: Fleet, facts: Facts, found: Played) -> str:
    """What a check of results says of it; empty where none lays it to whoever played it."""
    name = f"{found.role} {found.index}"
    for judge in _BY_RESULT:
        for verdict in judge(job, fleet, facts):
            if verdict.status is Status.FAIL and (found.node in verdict.nodes or name in verdict.message):
                return verdict.message.removeprefix(f"as expected of the drill {found.drill.spelled}: ")
    return ""


def _by_delay(run: GangRun, found: Played) -> str:
    """Who the others waited for; empty where that is not whoever played it."""
    if isinstance(run, ServerRun):
        return _waited_for(run, found)
    late = _last_to_enter(run, DELAY_S[found.role] / 2)
    if late and late.most_common(1)[0][0] == found.key and late[found.key] * 2 > sum(late.values()):
        return f"it entered {late[found.key]} collectives long after all others"
    return ""


def _last_to_enter(run: GangRun, least_s: float) -> Counter[str]:
    """How often each rank was the last to enter a collective, that much later than the second last."""
    entered: dict[int, dict[str, float]] = {}
    for event in run.events:
        number = event.data.get("collective")
        if event.data.get("event") == phases.ENTERING and isinstance(number, int):
            entered.setdefault(number, {})[event.request_key] = event.at_s
    late: Counter[str] = Counter()
    for times in entered.values():
        ordered = sorted(times, key=times.__getitem__)
        if len(ordered) == len(run.records) > 1 and times[ordered[-1]] - times[ordered[-2]] > least_s:
            late[ordered[-1]] += 1
    return late


def _waited_for(run: ServerRun, found: Played) -> str:
    """By what servers and workers say of their waiting."""
    if found.role == "worker":
        waited: dict[int, float] = {}
        for _, server in run.servers:
            for seen in server.seen:
                waited[seen.index] = max(waited.get(seen.index, 0.0), seen.waited_s)
        others = [seconds for index, seconds in waited.items() if index != found.index]
        own = waited.get(found.index, 0.0)
        if others and min(others) > own + _DELAYS * DELAY_S["worker"]:
            return f"the other workers waited {min(others):.1f} s for it, and it {own:.1f} s for them"
        return ""
    by_server: dict[int, float] = {}
    for _, worker in run.workers:
        for server_seen in worker.seen:
            by_server[server_seen.index] = by_server.get(server_seen.index, 0.0) + server_seen.waited_s
    own = by_server.pop(found.index, 0.0)
    if own > _DELAYS * DELAY_S["server"] and all(own > other for other in by_server.values()):
        return f"the workers waited {own:.1f} s for it"
    return ""
