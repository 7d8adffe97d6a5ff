"""Whether a lost worker was replaced by a spare one while the others went on, as the user asked to see."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Job
from preflight.judgement import Verdict, check, failed, not_applicable, passed, unknown
from preflight.outcome import Evidence, Severity
from preflight.ranks import views
from preflight.recording import Facts, Fleet, Unavailable
from preflight.request import Request
from preflight_checks.smoke.drilled import drillable
from preflight_checks.smoke.server_plan import has_spare, mode_of, plan_servers
from preflight_checks.smoke.server_run import COST, FACT, PROBES, ServerRun, blocked, server_run_of
from reference_trainer import phases
from reference_trainer.ps.report import Replacement
from reference_trainer.ps.settings import EXACT_READ


def plan_spare(job: Job, fleet: Fleet, facts: Facts) -> list[Request]:
    """The servers, the workers and the spare one, where one was asked for."""
    return list(plan_servers(job, fleet, facts)) if fleet.wish.backup else []


@check(
    "SMK028",
    "worker-replaced",
    plan=plan_spare,
    probes=PROBES,
    cost=COST,
    when="smoke",
    severity=Severity.INFO,
    evidence=("https://github.com/dmlc/ps-lite/blob/master/src/van.cc",),
)
@drillable("kill", "stop")
def worker_replaced(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """With --backup, a worker that died or held the others up was replaced, and the run came to its end without it.

    What it checks: one spare worker joins the run and waits. The servers give a worker up when its connection ends,
    or when it has held others up for 5 s; the spare one goes on from the push that the lost one did not finish, and
    all results are judged as in any other run.

    Why it matters: a job whose retries never had to work may find out at night that they do not. And a node that loses
    a worker in a run of a minute will lose one of the job, too.

    Example: worker 2 on node-c was killed by SIGKILL at step 7 of training; spare 0 on node-d took its place 0.8 s
    after its last word, and the run came to its end.

    Fix: see why the worker was lost: its last words and its node's log. The replacement itself worked.

    Known limits: the servers are the reference trainer's, so that this tells whether the cluster lets a worker be
    replaced (room for one more, no scheduler that kills the rest), not whether the job's framework would. Where servers
    wait for every worker none can be replaced. Paddle's own servers replace nobody.

    Evidence: ps-lite's van.cc gives the place of a dead node to one that comes later.
    """
    subject = "spare worker"
    if not fleet.wish.backup:
        yield not_applicable(subject, "no --backup was asked for")
        return
    run = server_run_of(job, facts)
    early = blocked(job, fleet, facts, run)
    if early is not None:
        yield early
        return
    mode = mode_of(job, fleet)
    if not has_spare(fleet, mode):
        text = f"the servers wait for every worker ({mode.why}), so that none can be replaced; try --mode async or ssp"
        yield unknown(subject, text, required=True)
        return
    if all(not report.exact_steps for _, report in run.workers):
        yield unknown(subject, "Paddle's own servers replace nobody", required=True)
        return
    if not run.replaced:
        where = ", ".join(node for node, _ in run.unneeded)
        yield passed(f"{subject} on {where}: not needed, all workers came to the end")
    for number in sorted(run.replaced):
        yield _told(run, number)


def _told(run: ServerRun, number: int) -> Verdict:
    lost, spare = run.member(number), run.replaced[number]
    assert lost is not None
    found = [one for _, report in run.servers for one in report.replaced if one.worker == lost.index]
    # Servers lose a worker one after the other; the furthest clock is how far it came.
    one = max(found, key=lambda taken: (taken.phase, taken.clock))
    who = f"{spare.name} on {spare.node}" if spare is not None else "a spare worker"
    ended = next(record.unavailable for record in run.records if record.request.key == lost.key)
    happened = f"{_how(ended, one)} at {_when(one)}"
    after_s = _taken_s(run, number) - views(run.members, run.events, (), began_s=0.0)[number].heard_at
    text = f"{lost.name} on {lost.node} {happened}; {who} took its place {after_s:.1f} s after its last word"
    return failed(
        f"{lost.name} on {lost.node}",
        f"{text}, and the run came to its end",
        at=Evidence(FACT, one.why, "all workers come to the end", node=lost.node),
        nodes=(lost.node,),
        remedy=f"See why {lost.name} was lost: its last words, and the log of {lost.node}. Replacing it worked.",
    )


def _taken_s(run: ServerRun, number: int) -> float:
    """When the first server said that a spare worker has this place."""
    told = (event for event in run.events if event.data.get("event") == phases.REPLACED)
    return min(event.at_s for event in told if event.data.get("worker") == number)


def _how(ended: Unavailable | None, one: Replacement) -> str:
    if ended is not None and ended.exit_code is not None and ended.exit_code < 0:
        import signal

        return f"was killed by {signal.Signals(-ended.exit_code).name}"
    if ended is not None and ended.exit_code is not None:
        return f"exited with {ended.exit_code}"
    return "held the others up" if "held others up" in one.why else "was lost"


def _when(one: Replacement) -> str:
    phase = "the phase with known gradients" if one.phase <= EXACT_READ else "training"
    return f"step {one.clock} of {phase}"
