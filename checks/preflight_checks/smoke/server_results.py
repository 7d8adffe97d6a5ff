"""Whether the parameter-server run came to the right answer: every update once, none too old, and learnt from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from preflight.job import Job
from preflight.judgement import Verdict, check, failed, not_applicable, passed
from preflight.outcome import Evidence, Severity
from preflight.recording import Facts, Fleet
from preflight_checks.demands import fold
from preflight_checks.smoke.drilled import drillable
from preflight_checks.smoke.server_plan import plan_servers
from preflight_checks.smoke.server_run import (
    COST,
    FACT,
    PROBES,
    UNCOUNTED,
    ServerRun,
    blocked,
    server_run_of,
    uncounted,
)
from reference_trainer.oracle import Mismatch
from reference_trainer.ps.report import ServerReport, WorkerReport
from reference_trainer.training import LOSS_FALLS_TO

_STALE_SYNCHRONOUS = "https://proceedings.neurips.cc/paper/2013/hash/b7bb35b9c6ca2aee2df08cf09d7016c2-Abstract.html"
#: Steps after which an ordinary run must have learnt something of the built-in task.
_LEARNING_STEPS = 5
#: The largest difference to one process that trained on all shards (modes in which there is one).
TOLERANCE = 1e-6


@check(
    "SMK024",
    "wrong-server-result",
    plan=plan_servers,
    probes=PROBES,
    cost=COST,
    when="smoke",
    severity=Severity.ERROR,
    evidence=("https://arxiv.org/abs/2407.21783",),
)
@drillable("loss", "double", "flip")
def wrong_server_result(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Parameters whose every bit is known in advance come back right from every server to every worker.

    What it checks: in a first phase workers push gradients that are known in advance (integers times powers of two, so
    that any order of adding gives the same bits), dense and sparse, in the job's mode. Each push as it arrives on the
    servers, and everything that each worker pulls at the end, is compared bit by bit. What differs tells the server,
    the shard, and whose push is lost or doubled.

    Why it matters: corrupted, lost and doubled updates give no error. The training goes on and learns something else.

    Example: worker 1 on node-d pulled hidden.weight from server 0 with 1 of 10240 elements wrong.

    Fix: take the named node out and test its memory and network card.

    Known limits: a fault that shows itself only under heat or in large transfers may not show here.

    Evidence: silent data corruption during training in arXiv 2407.21783 (section 3.3.4).
    """
    run = server_run_of(job, facts)
    early = blocked(job, fleet, facts, run)
    if early is not None:
        yield early
        return
    if uncounted(run):
        yield not_applicable("known parameters", UNCOUNTED)
        return
    wrong = [(f"server {r.index}", node, m) for node, r in run.servers for m in r.mismatches]
    wrong += [(f"worker {r.index}", node, m) for node, r in run.workers for m in r.mismatches]
    if wrong:
        yield _wrong(run, wrong)
        return
    digests = {f"worker {r.index} on {node}": (node, r.exact_digest) for node, r in run.workers if r.exact_digest}
    odd = _odd(digests)
    if odd is not None:
        who, node, digest, common = odd
        yield failed(
            f"known parameters on {who}",
            f"{who} pulled other parameters than the other workers at the end of the phase with known gradients",
            at=Evidence(FACT, f"SHA-256 {digest}", f"SHA-256 {common}", node=node),
            nodes=(node,),
            remedy=f"Take {node} out of the job and test its memory and network card.",
        )
        return
    steps = max((report.exact_steps for _, report in run.workers), default=0)
    yield passed(f"known parameters: equal bit by bit on {len(run.workers)} workers after {steps} steps")


def _wrong(run: ServerRun, wrong: list[tuple[str, str, Mismatch]]) -> Verdict:
    who, node, first = wrong[0]
    nodes = _suspects(run, wrong)
    more = f" ({len(wrong)} wrong results in all)" if len(wrong) > 1 else ""
    return failed(
        f"known parameters on {fold(nodes)}",
        f"{first.operation}: on {who} ({node}) element {first.index} is {first.got}, exactly {first.expected} was "
        f"expected; {first.explanation}; {first.wrong} of {first.elements} elements are wrong{more}",
        at=_evidence(who, node, first),
        also=[_evidence(*item) for item in wrong[1:8]],
        nodes=nodes,
        remedy=f"Take {fold(nodes)} out of the job and test memory and network card there.",
    )


def _suspects(run: ServerRun, wrong: list[tuple[str, str, Mismatch]]) -> tuple[str, ...]:
    """The node of the worker whose pushes are wrong, where all agree on one; else the nodes that see the fault."""
    blamed = {int(worker) for _, _, mismatch in wrong for worker in mismatch.contributions}
    nodes = {report.index: node for node, report in run.workers}
    if len(blamed) == 1 and (worker := next(iter(blamed))) in nodes:
        return (nodes[worker],)
    return tuple(dict.fromkeys(node for _, node, _ in wrong))


def _evidence(who: str, node: str, mismatch: Mismatch) -> Evidence:
    observed = f"{who}, {mismatch.operation}, element {mismatch.index}: {mismatch.got}"
    return Evidence(FACT, f"{observed} (bits {mismatch.flipped_bits} differ)", mismatch.expected, node=node)


def _odd(digests: dict[str, tuple[str, str]]) -> tuple[str, str, str, str] | None:
    """Who has another digest than most, its node, its digest, and the one that most have."""
    counts = Counter(digest for _, digest in digests.values())
    if len(counts) < 2:
        return None
    common = counts.most_common(1)[0][0]
    who, (node, digest) = next((who, item) for who, item in digests.items() if item[1] != common)
    return who, node, digest, common


@check(
    "SMK025",
    "updates-lost-doubled-or-stale",
    plan=plan_servers,
    probes=PROBES,
    cost=COST,
    when="smoke",
    severity=Severity.ERROR,
    evidence=(_STALE_SYNCHRONOUS,),
)
@drillable("loss", "double", "flip")
def updates_lost_doubled_or_stale(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Every push of every worker is applied once, and nobody reads parameters older than the mode allows.

    What it checks: each server counts the pushes of each worker against the steps taken, and keeps a histogram of how
    far each reader was ahead of the slowest worker: none in synchronous mode, at most the bound in bounded staleness.

    Why it matters: a lost or doubled push, or a read past the bound, changes what is learnt and gives no error.

    Example: server 1 on node-b applied 39 pushes of worker 2 on node-d; 40 were expected.

    Fix: look at the path between the two, and at the memory of the named node.

    Known limits: asynchronous modes have no bound; the histogram is told all the same.

    Evidence: bounded staleness as in Ho et al., NIPS 2013.
    """
    run = server_run_of(job, facts)
    early = blocked(job, fleet, facts, run)
    if early is not None:
        yield early
        return
    if uncounted(run):
        yield not_applicable("updates", UNCOUNTED)
        return
    faults = [verdict for node, report in run.servers for verdict in _miscounted(run, node, report)]
    yield from faults
    if not faults:
        pushes = sum(seen.pushes for _, report in run.servers for seen in report.seen)
        yield passed(f"updates: {pushes} pushes, each applied once; {_staleness(run)}")


def _miscounted(run: ServerRun, node: str, report: ServerReport) -> Iterator[Verdict]:
    where = f"server {report.index} on {node}"
    nodes = {worker.index: name for name, worker in run.workers}
    stale = {int(clocks): times for clocks, times in report.staleness.items() if int(clocks) > report.staleness_bound}
    bounded = report.mode in ("sync", "ssp")
    if stale and bounded:
        yield failed(
            f"staleness on {where}",
            f"{where} let {sum(stale.values())} reads go ahead of the slowest worker by up to {max(stale)} steps; in "
            f"mode {report.mode} at most {report.staleness_bound} is allowed",
            at=Evidence(FACT, f"staleness {max(stale)}", f"<= {report.staleness_bound}", node=node),
            nodes=(node,),
            remedy=f"Test the memory of {node}; the server's own counters contradict each other.",
        )
    for seen in report.seen:
        if report.expected_pushes and seen.pushes != report.expected_pushes:
            who = f"worker {seen.index} on {nodes.get(seen.index, seen.host)}"
            what = "lost" if seen.pushes < report.expected_pushes else "doubled"
            yield failed(
                f"pushes of {who}",
                f"{where} applied {seen.pushes} pushes of {who}; {report.expected_pushes} were expected: "
                f"{abs(seen.pushes - report.expected_pushes)} {what}",
                at=Evidence(FACT, f"{seen.pushes} pushes", str(report.expected_pushes), node=node),
                nodes=tuple(dict.fromkeys((node, nodes.get(seen.index, node)))),
                remedy=f"Look at what lies between {nodes.get(seen.index, seen.host)} and {node}, and at their memory.",
            )
    for text in report.violations[:4]:
        yield failed(
            f"updates on {where}",
            f"{where}: {text}",
            at=Evidence(FACT, text, "every push once, in order", node=node),
            nodes=(node,),
            remedy=f"Look at what lies between the workers and {node}, and at its memory.",
        )


def _staleness(run: ServerRun) -> str:
    together: Counter[int] = Counter()
    for _, report in run.servers:
        together.update({int(clocks): times for clocks, times in report.staleness.items()})
    if not together:
        return "no reads"
    return f"reads at most {max(together)} steps ahead of the slowest worker"


@check(
    "SMK027",
    "servers-trained-nothing",
    plan=plan_servers,
    probes=PROBES,
    cost=COST,
    when="smoke",
    severity=Severity.ERROR,
    evidence=("https://github.com/PaddlePaddle/Paddle/blob/v2.6.2/python/paddle/base/executor.py",),
)
@drillable("loss", "double", "flip")
def servers_trained_nothing(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """After a few ordinary steps over the servers all workers read the same parameters, and these have learnt.

    What it checks: SHA-256 of all parameters as each worker pulls them at the end; that every tensor moved and the loss
    of each worker fell; in synchronous mode that one process on the same data comes to the same parameters.

    Why it matters: training over servers can run to its end with exit code 0 while the parameters that workers see
    never change: with Paddle 2.6 an asynchronous loop of its own takes 100,000 steps and learns nothing.

    Example: on worker 0 on node-c hidden.weight did not change in 20 steps.

    Fix: compare library versions and hardware of the named node with the others.

    Known limits: a small model with one table; the comparison with one process needs synchronous updates.

    Evidence: executor.py of Paddle 2.6.2: only train_from_dataset pulls dense parameters in asynchronous mode.
    """
    run = server_run_of(job, facts)
    early = blocked(job, fleet, facts, run)
    if early is not None:
        yield early
        return
    faults = list(_parity(run))
    for node, report in run.workers:
        faults += _untrained(node, report)
    yield from faults
    if not faults:
        yield passed(f"training over servers: {len(run.workers)} workers read the same parameters, which have learnt")


def _parity(run: ServerRun) -> Iterator[Verdict]:
    digests = {f"worker {r.index} on {node}": (node, r.digest) for node, r in run.workers if r.digest}
    odd = _odd(digests)
    if odd is not None:
        who, node, digest, common = odd
        yield failed(
            "parameters after training",
            f"{who} reads other parameters than most workers after the last barrier, when nobody pushes any more",
            at=Evidence(FACT, f"SHA-256 {digest}", f"SHA-256 {common}", node=node),
            nodes=(node,),
            remedy=f"Test memory and network card of {node}, and compare its versions with the other nodes.",
        )


def _untrained(node: str, report: WorkerReport) -> Iterator[Verdict]:
    where = f"worker {report.index} on {node}"
    if report.unmoved:
        yield failed(
            f"training on {where}",
            f"{fold(report.unmoved)} did not change in {report.steps} steps on {where}; every tensor must",
            at=Evidence(FACT, f"unmoved: {fold(report.unmoved)}", "every tensor moves", node=node),
            nodes=(node,),
            remedy="Run torch's own tests on that node: the backward pass or the exchange does nothing there.",
        )
    # Of single steps nothing is asked: a worker that runs ahead of the others sees hardly more than its own pushes.
    first, last = report.first_loss, report.last_loss
    if report.steps >= _LEARNING_STEPS and not last < first * LOSS_FALLS_TO:
        limit = LOSS_FALLS_TO * first
        yield failed(
            f"training on {where}",
            f"the loss on {where} went from {first:.4g} to {last:.4g} in {report.steps} steps; "
            f"below {limit:.4g} was expected",
            at=Evidence(FACT, f"{last:.4g}", f"< {limit:.4g}", node=node),
            nodes=(node,),
            remedy="Compare torch and its numeric libraries on that node with those of the others.",
        )
    apart = report.difference_to_one_process
    if apart is not None and not apart <= TOLERANCE:
        yield failed(
            "training against one process",
            f"the parameters after {report.steps} steps of {report.workers} workers differ by {apart:.3g} from those "
            f"of one process on the same data; at most {TOLERANCE:g} was expected",
            at=Evidence(FACT, f"{apart:.3g}", f"<= {TOLERANCE:g}", node=node),
            nodes=(node,),
            remedy="Look at SMK024 first; then compare the nodes' numeric libraries.",
        )
