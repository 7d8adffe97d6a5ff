"""Checks that a backup worker replaced a lost worker while the others continued."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.agent import rank_events
from preflight.analysis.rank_state import build_views
from preflight.model.findings import Evidence, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet, Unavailable
from preflight.model.requests import Request
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, unknown
from preflight_checks.smoke.injected_fault import may_fail_by_injection
from preflight_checks.smoke.server_plan import has_backup, mode_of, plan_servers
from preflight_checks.smoke.server_run import COST, FACT, PROBES, ServerRun, blocked, server_run_of
from reference_trainer.ps.run_report import Replacement
from reference_trainer.ps.settings import EXACT_READ


def plan_with_backup(job: Job, fleet: Fleet, facts: Facts) -> list[Request]:
    """The requests for servers, workers and the backup worker, if one was requested."""
    return list(plan_servers(job, fleet, facts)) if fleet.smoke_options.backup else []


@check(
    "SMK028",
    "worker-replaced",
    plan=plan_with_backup,
    probes=PROBES,
    cost=COST,
    when="smoke",
    severity=Severity.INFO,
    evidence=(
        ("failed worker restarts, cannot connect to ps-lite scheduler again", "apache/mxnet#2268"),
        (
            "ps-lite's van.cc gives the place of a dead node to one that comes later",
            "https://github.com/dmlc/ps-lite/blob/master/src/van.cc",
        ),
    ),
)
@may_fail_by_injection("kill", "stop")
def worker_replaced(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """With --backup, a worker that died or blocked the others was replaced, and the run completed.

    What it checks: one backup worker joins the run and waits. The servers drop a worker when its connection ends or it
    has blocked others for 5 s; the backup worker continues from the unfinished push, and all results are judged as
    usual.

    Why it matters: recovery that was never exercised may fail when it is needed. And a node that loses a worker within
    a minute will lose one of the job, too.

    Example: worker 2 on node-c was killed by SIGKILL at step 7 of training; spare 0 on node-d took its place 0.8 s
    after its last event, and the run completed.

    Fix: find out why the worker was lost: check its last output and its node's log. The replacement itself worked.

    Known limits: the servers are the reference trainer's, so this shows whether the cluster allows a replacement (room
    for one more process, no scheduler that kills the rest), not whether the job's framework does. If servers wait for
    every worker, none can be replaced. Paddle's own servers cannot replace a worker.
    """
    subject = "backup worker"
    if not fleet.smoke_options.backup:
        yield not_applicable(subject, "--backup was not given")
        return
    run = server_run_of(job, facts)
    early = blocked(job, fleet, facts, run)
    if early is not None:
        yield early
        return
    mode = mode_of(job, fleet)
    if not has_backup(fleet, mode):
        text = f"the servers wait for every worker ({mode.why}), so none can be replaced; try --mode async or ssp"
        yield unknown(subject, text, required=True)
        return
    if all(not report.exact_steps for _, report in run.workers):
        yield unknown(subject, "Paddle's own servers cannot replace a worker", required=True)
        return
    if not run.replaced:
        where = ", ".join(node for node, _ in run.unused_backups)
        yield passed(f"{subject} on {where}: not needed, all workers completed")
    for number in sorted(run.replaced):
        yield _recovery(run, number)


def _recovery(run: ServerRun, number: int) -> Verdict:
    lost, backup = run.member(number), run.replaced[number]
    assert lost is not None
    found = [
        replacement for _, report in run.servers for replacement in report.replaced if replacement.worker == lost.index
    ]
    # Servers lose a worker one after another; the highest clock is its progress.
    replacement = max(found, key=lambda taken: (taken.phase, taken.clock))
    who = f"{backup.name} on {backup.node}" if backup is not None else "a backup worker"
    ended = next(record.unavailable for record in run.records if record.request.key == lost.key)
    happened = f"{_loss_text(ended, any(each.lagged for each in found))} at {_phase_text(replacement)}"
    after_s = _taken_s(run, number) - build_views(run.members, run.events, (), began_s=0.0)[number].last_event_at
    text = f"{lost.name} on {lost.node} {happened}; {who} took its place {after_s:.1f} s after its last event"
    return failed(
        f"{lost.name} on {lost.node}",
        f"{text}, and the run completed",
        at=Evidence(FACT, replacement.why, "all workers complete", node=lost.node),
        nodes=(lost.node,),
        remedy=f"Find out why {lost.name} was lost: check its last output and the log of {lost.node}. Replacing it "
        "worked.",
    )


def _taken_s(run: ServerRun, number: int) -> float:
    """When the first server reported that a backup worker took over this index."""
    replacements = (event for event in run.events if event.data.get("event") == rank_events.REPLACED)
    return min(event.at_s for event in replacements if event.data.get("worker") == number)


def _loss_text(ended: Unavailable | None, held_others_up: bool) -> str:
    if ended is not None and ended.exit_code is not None and ended.exit_code < 0:
        import signal

        return f"was killed by {signal.Signals(-ended.exit_code).name}"
    if ended is not None and ended.exit_code is not None:
        return f"exited with {ended.exit_code}"
    return "delayed the others" if held_others_up else "was lost"


def _phase_text(replacement: Replacement) -> str:
    phase = "the phase with known gradients" if replacement.phase <= EXACT_READ else "training"
    return f"step {replacement.clock} of {phase}"
