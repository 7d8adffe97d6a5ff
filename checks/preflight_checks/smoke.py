"""Whether a short real training run over the job's own nodes comes to its end with the one right answer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from preflight.culprit import Culprit
from preflight.job import Job
from preflight.judgement import Verdict, check, failed, passed, unknown
from preflight.outcome import Evidence, Severity
from preflight.ranks import views
from preflight.recording import Facts, Fleet
from preflight_checks.demands import fold
from preflight_checks.smoke_plan import plan_of, plan_smoke
from preflight_checks.smoke_run import FACT, SmokeRun, incomplete, run_of, without_run
from reference_trainer.collective import RankReport
from reference_trainer.oracle import Mismatch
from reference_trainer.training import LOSS_FALLS_TO, TOLERANCE

#: Steps after which an ordinary run must have learnt something of the built-in task.
_LEARNING_STEPS = 5
_LAST_LINES = 6
_FRAMES = 8
#: A frame and the head of a thread in a dump of Python's faulthandler (most recent call first).
_FRAME = re.compile(r'File "([^"]*)", line (\d+) in (\S+)')
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x.*$", re.MULTILINE)


@check(
    "SMK001",
    "rank-did-not-finish",
    plan=plan_smoke,
    when="smoke",
    severity=Severity.ERROR,
    evidence=("pytorch/pytorch#76287", "goodfire-ai/spd#552", "NVIDIA/nccl#257"),
)
def rank_did_not_finish(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Every rank of a short training run over the job's nodes comes to its end.

    What it checks: one rank for each GPU that the job uses on each node (one a node without GPUs) joins at the
    job's own master endpoint, sums known tensors and trains ten steps, in the job's own interpreter and
    environment. When not all come to the end, the one that the others wait for is named: missing, dead,
    stopped, stuck, or lost with its node.

    Why it matters: a rank that is missing or stuck leaves all others silent for up to 30 minutes, and none of
    their messages names it.

    Example: rank 3 on node-b was killed by SIGKILL (out of memory) while summing; ranks 0 to 2 lost their
    connections because of it.

    Fix: look at the named node and rank first; its stack or last words stand in the evidence.

    Known limits: the model is small; memory and bandwidth of the real job are not tried. When every rank entered
    a collective and none left it, no single rank can be named.

    Evidence: pytorch/pytorch#76287 and goodfire-ai/spd#552 (the rest runs on for hours after one rank died),
    NVIDIA/nccl#257 (all ranks hang in one all-reduce).
    """
    run = run_of(job, facts)
    early = without_run(job, fleet, run)
    if early is not None:
        yield early
        return
    if run.complete:
        yield passed(_summary(job, fleet, facts, run))
        return
    if run.blamed is None:
        silent = [r.request.node for r in run.records if r.unavailable is not None]
        reasons = dict.fromkeys(r.unavailable.reason for r in run.records if r.unavailable is not None)
        yield unknown("smoke run", f"ranks on {fold(silent)} did not finish: {fold(reasons, 2)}", required=True)
        return
    if run.blamed.kind == "endpoint":
        yield unknown("smoke run", f"blocked by SMK004: {run.blamed.because}")
        return
    yield _named(run, run.blamed)


def _count(ranks: int) -> str:
    return "1 rank" if ranks == 1 else f"{ranks} ranks"


def _summary(job: Job, fleet: Fleet, facts: Facts, run: SmokeRun) -> str:
    report = run.reports[0][1]
    plan = plan_of(job, fleet, facts)
    nodes = len({node for node, _ in run.reports})
    where = f"{_count(report.world_size)} on {f'{nodes} nodes' if nodes > 1 else 'one node'}"
    return f"smoke run: {where}, {report.backend} ({plan.why_so_many}; met at {plan.meeting.source})"


_REMEDIES = {
    "missing": "See why no rank starts on {node}: its interpreter and environment are those of the job.",
    "dead": "Look at {node}: its last words are in the evidence; SIGKILL is mostly the out-of-memory killer (dmesg).",
    "stopped": "Continue or end the stopped process on {node} (kill -CONT), and find out who stopped it.",
    "stuck": "Look at the stack of the rank on {node} in the evidence: it shows what it waits for.",
    "lost-node": "See whether {node} still runs and can be reached.",
    "mismatch": "Make all ranks agree: end what is left of earlier runs on the master's port, or choose another port.",
}


def _named(run: SmokeRun, blamed: Culprit) -> Verdict:
    nodes = _nodes(run, blamed)
    remedy = _REMEDIES.get(blamed.kind, "Look at {node}.").format(node=blamed.node)
    if blamed.rank is None:
        remedy = (
            "Compare the path between the nodes for large packets (MTU), firewalls for high ports, and the "
            "interface that each rank chose; the link checks try each pair by itself."
        )
    subject = f"rank {blamed.rank} on {blamed.node}" if blamed.rank is not None else "smoke run"
    waiting = (
        f"; {_ranks(blamed.waiting)} could not go on because of it"
        if blamed.waiting and blamed.rank is not None
        else ""
    )
    return failed(
        subject,
        f"{blamed.because}{waiting}",
        at=Evidence(
            FACT,
            _observed(run, blamed),
            "every rank comes to its end",
            node=blamed.node,
            at_s=blamed.since_s,
        ),
        also=(*_details(run, blamed), *run.claims),
        nodes=nodes,
        remedy=remedy,
    )


def _observed(run: SmokeRun, blamed: Culprit) -> str:
    phase = f"after phase {blamed.phase}" if blamed.phase else "before its first phase"
    return f"{blamed.kind} {phase}, during {blamed.doing}" if blamed.doing else f"{blamed.kind} {phase}"


def _details(run: SmokeRun, blamed: Culprit) -> Iterator[Evidence]:
    """Where the rank to blame stood, else its last words."""
    members = {int(r.request.params["rank"]): (r.request.node, r.request.key) for r in run.records}
    wanted = blamed.rank if blamed.rank is not None else min(members)
    view = views(members, run.events, run.records, began_s=0.0)[wanted]
    if view.stacks.strip():
        yield Evidence(FACT, "stack: " + stack_of(view.stacks), node=view.node, at_s=blamed.since_s)
        return
    for record in run.records:
        problem = record.unavailable
        if record.request.key == blamed.key and problem is not None and problem.detail.strip():
            lines = [line.strip() for line in problem.detail.splitlines() if line.strip()]
            words = " | ".join(lines[-_LAST_LINES:])
            yield Evidence(FACT, "last words: " + words, node=blamed.node, at_s=record.finished_s)


def stack_of(text: str) -> str:
    """The innermost frames of the rank's own thread, innermost first, from faulthandler's dump of all threads."""
    threads = [_FRAME.findall(block) for block in _THREAD.split(text)]
    own = [frames for frames in threads if any("reference_trainer" in path for path, _, _ in frames)]
    main = [frames for frames in own if any(name == "rank" for _, _, name in frames)]
    frames = next(iter(main or own or [frames for frames in threads if frames]), [])
    if not frames:
        return " | ".join(line.strip() for line in text.splitlines()[:_LAST_LINES] if line.strip())
    shown = [f"{name} ({path.rsplit('/', 1)[-1]}:{line})" for path, line, name in frames[:_FRAMES]]
    return " < ".join(shown)


def _nodes(run: SmokeRun, blamed: Culprit) -> tuple[str, ...]:
    by_rank = {int(r.request.params["rank"]): r.request.node for r in run.records}
    if blamed.rank is None:
        return tuple(dict.fromkeys(by_rank[rank] for rank in sorted(by_rank)))
    also = [by_rank[rank] for rank in blamed.also if rank in by_rank]
    return tuple(dict.fromkeys((blamed.node, *also)))


def _ranks(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + fold([str(rank) for rank in ranks])


@check(
    "SMK002",
    "wrong-collective-result",
    plan=plan_smoke,
    when="smoke",
    severity=Severity.ERROR,
    evidence=("https://arxiv.org/abs/2407.21783", "NVIDIA/nccl-tests"),
)
def wrong_collective_result(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Sums whose every bit is known in advance come out right on every rank.

    What it checks: all-reduce of 1 element to 1 MiB, broadcast, all-gather, reduce-scatter and the gradients
    and weights of a linear model, all over integers times powers of two, so that any order of summing gives the
    same bits. Each rank contributes a digit of its own: a lost or doubled contribution tells whose it was.

    Why it matters: corrupted sums give no error. The training goes on and learns something else.

    Example: on rank 2 the contribution of rank 1 is missing from 4096 elements of an all-reduce.

    Fix: take the named node out and test its memory, GPU and network card.

    Known limits: a fault that shows itself only under heat or in large transfers may not show here.

    Evidence: silent data corruption during training in arXiv 2407.21783 (section 3.3.4); NVIDIA/nccl-tests
    checks results for the same reason.
    """
    run = run_of(job, facts)
    early = incomplete(job, fleet, run)
    if early is not None:
        yield early
        return
    wrong = [(node, m) for node, report in run.reports for m in report.mismatches]
    if not wrong:
        operations = sum(report.operations for _, report in run.reports)
        yield passed(f"collective results: {operations} compared bit by bit on {_count(len(run.reports))}")
        return
    nodes_by_rank = {report.rank: node for node, report in run.reports}
    suspects = _suspects(wrong, nodes_by_rank)
    first_node, first = wrong[0]
    more = f" ({len(wrong)} wrong results in all)" if len(wrong) > 1 else ""
    yield failed(
        f"collective results on {fold(suspects)}",
        f"{first.operation}: on rank {first.rank} ({first_node}) element {first.index} is {first.got}, exactly "
        f"{first.expected} was expected; {first.explanation}; {first.wrong} of {first.elements} elements "
        f"are wrong{more}",
        at=_mismatch_evidence(first_node, first),
        also=[_mismatch_evidence(node, mismatch) for node, mismatch in wrong[1:8]],
        nodes=suspects,
        remedy=f"Take {fold(suspects)} out of the job and test memory, GPU and network card there.",
    )


def _suspects(wrong: Sequence[tuple[str, Mismatch]], nodes: dict[int, str]) -> tuple[str, ...]:
    """The node whose contribution is wrong, where all mismatches agree on one; else the nodes that see the fault."""
    blamed: Counter[int] = Counter()
    for _, mismatch in wrong:
        blamed.update({int(rank) for rank in mismatch.contributions})
    if blamed and len(blamed) == 1:
        rank = next(iter(blamed))
        if rank in nodes:
            return (nodes[rank],)
    return tuple(dict.fromkeys(node for node, _ in wrong))


def _mismatch_evidence(node: str, mismatch: Mismatch) -> Evidence:
    observed = f"rank {mismatch.rank}, {mismatch.operation}, element {mismatch.index}: {mismatch.got}"
    return Evidence(FACT, f"{observed} (bits {mismatch.flipped_bits} differ)", mismatch.expected, node=node)


@check(
    "SMK003",
    "ranks-disagree-after-training",
    plan=plan_smoke,
    when="smoke",
    severity=Severity.ERROR,
    evidence=("https://pytorch.org/docs/stable/notes/ddp.html",),
)
def ranks_disagree(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """After a few ordinary training steps every rank holds the same weights, and they have learnt.

    What it checks: SHA-256 of all parameters on every rank; that every tensor moved and the loss fell; that one
    process trained on the same shards comes to the same weights within 1e-6.

    Why it matters: ranks that drift apart, or weights that never move, end with exit code 0.

    Example: the weights on node-c differ from those of all other ranks after ten steps.

    Fix: compare library versions and hardware of the named node with the others.

    Known limits: a small model of two layers; the comparison with one process is left out above ten steps and
    above 64 ranks.

    Evidence: the DDP design note (every rank keeps equal weights by construction).
    """
    run = run_of(job, facts)
    early = incomplete(job, fleet, run)
    if early is not None:
        yield early
        return
    faults = list(_training_faults(run))
    yield from faults
    if not faults:
        yield passed(f"weights after training: equal on {_count(len(run.reports))}")


def _training_faults(run: SmokeRun) -> Iterator[Verdict]:
    owners = {report.rank: node for node, report in run.reports}
    digests = run.reports[0][1].digests
    common = Counter(digests).most_common(1)[0][0] if digests else ""
    odd = [rank for rank, found in enumerate(digests) if found != common]
    if odd:
        nodes = tuple(dict.fromkeys(owners.get(rank, "") for rank in odd))
        yield failed(
            "weights after training",
            f"{_ranks(odd)} on {fold(nodes)} hold other weights than the other {len(digests) - len(odd)} ranks "
            "after the same steps; DistributedDataParallel keeps them equal",
            at=Evidence(FACT, f"rank {odd[0]}: SHA-256 {digests[odd[0]]}", f"SHA-256 {common}", node=nodes[0]),
            nodes=nodes,
            remedy=f"Compare torch, NCCL and driver of {fold(nodes)} with the other nodes; test its memory and GPU.",
        )
    for node, report in run.reports:
        yield from _rank_faults(node, report)


def _rank_faults(node: str, report: RankReport) -> Iterator[Verdict]:
    where = f"rank {report.rank} on {node}"
    if report.unmoved:
        yield failed(
            f"training on {where}",
            f"{fold(report.unmoved)} did not change in {report.steps} steps on {where}; every tensor must",
            at=Evidence(FACT, f"unmoved: {fold(report.unmoved)}", "every tensor moves", node=node),
            nodes=(node,),
            remedy="Run torch's own tests on that node: the backward pass or the optimizer does nothing there.",
        )
    losses = report.losses
    if len(losses) >= _LEARNING_STEPS and not losses[-1] < losses[0] * LOSS_FALLS_TO:
        yield failed(
            f"training on {where}",
            f"the loss on {where} went from {losses[0]:.4g} to {losses[-1]:.4g} in {report.steps} steps; "
            f"below {LOSS_FALLS_TO * losses[0]:.4g} was expected",
            at=Evidence(FACT, f"{losses[-1]:.4g}", f"< {LOSS_FALLS_TO * losses[0]:.4g}", node=node),
            nodes=(node,),
            remedy="Compare torch and its numeric libraries on that node with those of the others.",
        )
    apart = report.difference_to_one_process
    if apart is not None and not apart <= TOLERANCE:
        yield failed(
            "training against one process",
            f"the weights after {report.steps} steps on {report.world_size} ranks differ by {apart:.3g} from those of "
            f"one process on the same shards; at most {TOLERANCE:g} was expected",
            at=Evidence(FACT, f"{apart:.3g}", f"<= {TOLERANCE:g}", node=node),
            nodes=(node,),
            remedy="Look at SMK002 first; then compare the ranks' numeric libraries.",
        )


@check(
    "SMK004",
    "master-endpoint-unusable",
    plan=plan_smoke,
    when="smoke",
    severity=Severity.ERROR,
    evidence=("pytorch/pytorch#85604", "pytorch/pytorch#73656", "thu-coai/CDial-GPT#103"),
)
def master_endpoint_unusable(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Rank 0 can listen on the master port, and all ranks reach it there and through the process group.

    What it checks: rank 0 binds the port before torch is imported; every rank dials it with plain TCP from
    inside the job context, so that refused, dropped and unresolvable are told apart; and no rank advertises
    loopback to the others.

    Why it matters: all of these look the same in torch: silence, then a time-out that names nobody.

    Example: rank 0 on node-a must be the master, but cannot listen on port 29500: Address already in use.

    Fix: end what holds the port or choose another one; open the port between the nodes; give every node a
    name that resolves to an address the others can reach, or choose an interface.

    Known limits: none known.

    Evidence: pytorch/pytorch#85604, pytorch/pytorch#73656, thu-coai/CDial-GPT#103.
    """
    run = run_of(job, facts)
    early = without_run(job, fleet, run)
    if early is not None:
        yield early if not early.required else unknown("master endpoint", "blocked by SMK001: no rank ran")
        return
    blamed = run.blamed
    if blamed is None or blamed.kind != "endpoint":
        dialled = [e for e in run.events if e.data.get("event") == "dial" and e.data.get("result") == "open"]
        if run.complete or len({e.request_key for e in dialled}) == len(run.records):
            meeting = plan_of(job, fleet, facts).meeting
            yield passed(f"master endpoint: {meeting.host}:{meeting.port} reached by {_count(len(run.records))}")
        else:
            yield unknown("master endpoint", "blocked by SMK001: not all ranks came so far")
        return
    plan = plan_of(job, fleet, facts)
    yield failed(
        f"master endpoint {plan.meeting.host}:{plan.meeting.port}",
        f"{blamed.because} ({plan.meeting.source})",
        at=Evidence(FACT, blamed.because, "every rank opens the master's port", node=blamed.node, at_s=blamed.since_s),
        also=run.claims,
        nodes=_nodes(run, blamed),
        remedy=(
            f"See what holds port {plan.meeting.port} on {blamed.node} (ss -ltnp), whether the port is open between "
            f"the nodes, and what {plan.meeting.host} resolves to on each of them."
        ),
    )
