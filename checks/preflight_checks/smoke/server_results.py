"""Checks the results of the parameter-server run: every update applied once, none too old, and effective."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from preflight.model.findings import Evidence, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet
from preflight.plugins.authoring import Verdict, failed, passed
from preflight_checks.requirements import fold
from preflight_checks.smoke.injected_fault import may_fail_by_injection
from preflight_checks.smoke.server_run import FACT, ServerRun, complete_server_run, server_check
from reference_trainer.collective.steps import MAX_LOSS_RATIO
from reference_trainer.common.oracle import Mismatch
from reference_trainer.ps.run_report import IMPOSSIBLE, ServerReport, WorkerReport

_STALE_SYNCHRONOUS = "https://proceedings.neurips.cc/paper/2013/hash/b7bb35b9c6ca2aee2df08cf09d7016c2-Abstract.html"
#: Steps after which a correct run has learned the built-in task to some degree.
_LEARNING_STEPS = 5
#: The largest allowed difference from one process that trained on all shards, in modes with such a reference.
TOLERANCE = 1e-6


@server_check(
    "SMK024",
    "wrong-server-result",
    severity=Severity.ERROR,
    evidence=(
        (
            "silent data corruption during training in arXiv 2407.21783 (section 3.3.4)",
            "https://arxiv.org/abs/2407.21783",
        ),
    ),
)
@may_fail_by_injection("loss", "double", "flip")
def wrong_server_result(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Parameters with exactly known values are correct from every server to every worker.

    What it checks: in a first phase workers push gradients that are known in advance (integers times powers of two, so
    that any order of adding gives the same bits), dense and sparse, in the job's mode. Each push as it arrives on the
    servers, and everything that each worker pulls at the end, is compared bit by bit. A difference identifies the
    server, the shard, and the worker whose push is lost or doubled.

    Why it matters: corrupted, lost and doubled updates give no error. Training continues and learns something else.

    Example: worker 1 on node-d pulled hidden.weight from server 0 with 1 of 10240 elements wrong.

    Fix: remove the named node from the job and test its memory and network card.

    Known limits: faults that appear only under heat or in large transfers may not show here.
    """
    run = yield from complete_server_run(job, fleet, facts, counted="known parameters")
    if run is None:
        return
    wrong = [(f"server {r.index}", node, m) for node, r in run.servers for m in r.mismatches]
    wrong += [(f"worker {r.index}", node, m) for node, r in run.workers for m in r.mismatches]
    if wrong:
        yield _wrong_finding(run, wrong)
        return
    digests = {f"worker {r.index}": (node, r.exact_digest) for node, r in run.workers if r.exact_digest}
    odd = _odd_workers(digests)
    if odd is not None:
        who, node, digest, common = odd
        yield failed(
            f"known parameters on {who} on {node}",
            f"{who} on {node} pulled different parameters from the other workers in the phase with known gradients",
            at=Evidence(FACT, f"SHA-256 {digest}", f"SHA-256 {common}", node=node),
            processes=(who,),
            remedy=f"Remove {node} from the job and test its memory and network card.",
        )
        return
    steps = max((report.exact_steps for _, report in run.workers), default=0)
    yield passed(f"known parameters: equal bit by bit on {len(run.workers)} workers after {steps} steps")


def _wrong_finding(run: ServerRun, wrong: list[tuple[str, str, Mismatch]]) -> Verdict:
    who, node, first = wrong[0]
    nodes = _suspects(run, wrong)
    more = f" ({len(wrong)} wrong results in total)" if len(wrong) > 1 else ""
    return failed(
        f"known parameters on {fold(nodes)}",
        f"{first.operation}: on {who} ({node}) element {first.index} is {first.got}, expected exactly "
        f"{first.expected}; {first.explanation}; {first.wrong} of {first.elements} elements are wrong{more}",
        at=_evidence(who, node, first),
        also=[_evidence(*item) for item in wrong[1:8]],
        nodes=nodes,
        processes=_processes(wrong),
        remedy=f"Remove {fold(nodes)} from the job and test memory and network card there.",
    )


def _suspects(run: ServerRun, wrong: list[tuple[str, str, Mismatch]]) -> tuple[str, ...]:
    """The node of the worker with wrong pushes, if all mismatches agree on one; else the nodes that see the fault."""
    culprit = {int(worker) for _, _, mismatch in wrong for worker in mismatch.contributions}
    nodes = {report.index: node for node, report in run.workers}
    if len(culprit) == 1 and (worker := next(iter(culprit))) in nodes:
        return (nodes[worker],)
    return tuple(dict.fromkeys(node for _, node, _ in wrong))


def _processes(wrong: list[tuple[str, str, Mismatch]]) -> tuple[str, ...]:
    """The workers with wrong pushes; without any, the processes that sent or received a wrong tensor."""
    workers = dict.fromkeys(f"worker {int(worker)}" for _, _, mismatch in wrong for worker in mismatch.contributions)
    others = (name for who, _, mismatch in wrong for name in (who, mismatch.sender) if name)
    return tuple(workers) or tuple(others)


def _evidence(subject: str, node: str, mismatch: Mismatch) -> Evidence:
    observed = f"{subject}, {mismatch.operation}, element {mismatch.index}: {mismatch.got}"
    return Evidence(FACT, f"{observed} (bits {mismatch.flipped_bits} differ)", mismatch.expected, node=node)


def _odd_workers(digests: dict[str, tuple[str, str]]) -> tuple[str, str, str, str] | None:
    """Each worker whose digest differs from the majority: the worker, its node, its digest, and the common one."""
    counts = Counter(digest for _, digest in digests.values())
    if len(counts) < 2:
        return None
    common = counts.most_common(1)[0][0]
    who, (node, digest) = next((who, item) for who, item in digests.items() if item[1] != common)
    return who, node, digest, common


@server_check(
    "SMK025",
    "updates-lost-doubled-or-stale",
    severity=Severity.ERROR,
    evidence=(("bounded staleness as in Ho et al., NIPS 2013", _STALE_SYNCHRONOUS),),
)
@may_fail_by_injection("loss", "double", "flip")
def updates_lost_doubled_or_stale(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Every push of every worker is applied once, and no worker reads parameters older than the mode allows.

    What it checks: each server compares the pushes of each worker with the steps taken, and keeps a histogram of
    how far each reader was ahead of the slowest worker: none in synchronous mode, at most the bound in bounded
    staleness.

    Why it matters: a lost or doubled push, or a read past the bound, changes the result and gives no error.

    Example: server 1 on node-b applied 39 pushes of worker 2 on node-d; 40 were expected.

    Fix: inspect the path between the two, and the memory of the named node.

    Known limits: asynchronous modes have no bound; the histogram is reported anyway.
    """
    run = yield from complete_server_run(job, fleet, facts, counted="updates")
    if run is None:
        return
    faults = [verdict for node, report in run.servers for verdict in _count_findings(run, node, report)]
    yield from faults
    if not faults:
        pushes = sum(seen.pushes for _, report in run.servers for seen in report.seen)
        yield passed(f"updates: {pushes} pushes, each applied once; {_staleness(run)}")


def _count_findings(run: ServerRun, node: str, report: ServerReport) -> Iterator[Verdict]:
    where = f"server {report.index} on {node}"
    nodes = {worker.index: name for name, worker in run.workers}
    stale = {int(clocks): times for clocks, times in report.staleness.items() if int(clocks) > report.staleness_bound}
    bounded = report.mode in ("sync", "ssp")
    if stale and bounded:
        yield failed(
            f"staleness on {where}",
            f"{where} allowed {sum(stale.values())} reads up to {max(stale)} steps ahead of the slowest worker; mode "
            f"{report.mode} permits at most {report.staleness_bound}",
            at=Evidence(FACT, f"staleness {max(stale)}", f"<= {report.staleness_bound}", node=node),
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
                processes=(f"worker {seen.index}", f"server {report.index}"),
                remedy=f"Inspect the path between {nodes.get(seen.index, seen.host)} and {node}, and their memory.",
            )
    for text in report.violations[:4]:
        yield failed(
            f"updates on {where}",
            f"{where}: {text}",
            at=Evidence(FACT, text, "every push applied once, in order", node=node),
            processes=(f"server {report.index}",),
            remedy=f"Inspect the path between the workers and {node}, and its memory.",
        )


def _staleness(run: ServerRun) -> str:
    together: Counter[int] = Counter()
    for _, report in run.servers:
        together.update({int(clocks): times for clocks, times in report.staleness.items()})
    if not together:
        return "no reads"
    return f"reads at most {max(together)} steps ahead of the slowest worker"


@server_check(
    "SMK027",
    "servers-trained-nothing",
    severity=Severity.ERROR,
    evidence=(
        (
            "executor.py of Paddle 2.6.2: only train_from_dataset pulls dense parameters in asynchronous mode",
            "https://github.com/PaddlePaddle/Paddle/blob/v2.6.2/python/paddle/base/executor.py",
        ),
    ),
)
@may_fail_by_injection("loss", "double", "flip")
def servers_trained_nothing(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """After a few training steps all workers read the same parameters, and the model has learned.

    What it checks: SHA-256 of all parameters as each worker pulls them at the end; that every tensor moved and the loss
    of each worker fell; that a single process gets the same parameters from the same data, if it adds pushes and reads
    weights in the order that the servers recorded.

    Why it matters: training over servers can run to its end with exit code 0 while the parameters that workers see
    never change: with Paddle 2.6 a hand-written asynchronous loop takes 100,000 steps and learns nothing.

    Example: on worker 0 on node-c hidden.weight did not change in 20 steps.

    Fix: compare library versions and hardware of the named node with the others.

    Known limits: a small model with one table; the comparison with one process is left out above 1280 pushes.
    """
    run = yield from complete_server_run(job, fleet, facts)
    if run is None:
        return
    faults = list(_parity_findings(run))
    for node, report in run.workers:
        faults += _untrained_findings(run, node, report)
    yield from faults
    if not faults:
        is_compared = any(report.difference_to_one_process is not None for _, report in run.workers)
        yield passed(
            f"training over servers: {len(run.workers)} workers read the same parameters, and the model has learned"
            + ("" if is_compared else "; not compared with one process")
        )


def _parity_findings(run: ServerRun) -> Iterator[Verdict]:
    digests = {f"worker {r.index} on {node}": (node, r.digest) for node, r in run.workers if r.digest}
    odd = _odd_workers(digests)
    if odd is not None:
        who, node, digest, common = odd
        yield failed(
            "parameters after training",
            f"{who} on {node} reads different parameters from most workers after the last barrier, when no worker "
            "pushes "
            "any longer",
            at=Evidence(FACT, f"SHA-256 {digest}", f"SHA-256 {common}", node=node),
            processes=(who,),
            remedy=f"Test memory and network card of {node}, and compare its versions with the other nodes.",
        )


def _untrained_findings(run: ServerRun, node: str, report: WorkerReport) -> Iterator[Verdict]:
    where = f"worker {report.index} on {node}"
    if report.unmoved:
        yield failed(
            f"training on {where}",
            f"{fold(report.unmoved)} did not change in {report.steps} steps on {where}; every tensor must change",
            at=Evidence(FACT, f"unmoved: {fold(report.unmoved)}", "every tensor changes", node=node),
            processes=(f"worker {report.index}",),
            remedy="Run torch's own tests on that node: the backward pass or the exchange has no effect there.",
        )
    # Single steps are not judged: a worker that runs ahead sees hardly more than its own pushes.
    first, last = report.first_loss, report.last_loss
    if report.steps >= _LEARNING_STEPS and not last < first * MAX_LOSS_RATIO:
        limit = MAX_LOSS_RATIO * first
        yield failed(
            f"training on {where}",
            f"the loss on {where} changed from {first:.4g} to {last:.4g} in {report.steps} steps; "
            f"expected less than {limit:.4g}",
            at=Evidence(FACT, f"{last:.4g}", f"< {limit:.4g}", node=node),
            processes=(f"worker {report.index}",),
            remedy="Compare torch and its numeric libraries on that node with those of the others.",
        )
    difference = report.difference_to_one_process
    if difference == IMPOSSIBLE:
        yield failed(
            "training against one process",
            "the servers' own records show a push of the training that was not added exactly once, or a read of "
            "weights that did not exist yet",
            at=Evidence(FACT, "pushes lost, doubled or out of order", "every push once, in order", node=node),
            nodes=tuple(dict.fromkeys(server for server, _ in run.servers)),
            remedy="See SMK024 and SMK025 first; then test the memory of the servers' nodes.",
        )
    elif difference is not None and not difference <= TOLERANCE:
        yield failed(
            "training against one process",
            f"the parameters after {report.steps} steps of {report.workers} workers differ by {difference:.3g} from "
            f"those of one process on the same data; expected at most {TOLERANCE:g}",
            at=Evidence(FACT, f"{difference:.3g}", f"<= {TOLERANCE:g}", node=node),
            remedy="See SMK024 first; then compare the nodes' numeric libraries.",
        )
