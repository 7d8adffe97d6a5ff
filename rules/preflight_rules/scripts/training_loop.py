"""Training loops in which one rank diverges from the others, or the ranks do not exchange their gradients."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Known, Launch, Unresolved
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, unknown
from preflight.plugins.claim_text import joined, placed, quoted
from preflight_rules.launches import certainly_several, ranks_started
from preflight_rules.scripts.script_facts import (
    definitely_one_rank,
    launches_of,
    not_on_several_ranks,
    on_several_nodes,
    runs_program,
    started_files,
    stated,
)

#: What a rank does under the condition, by the kind of statement.
_HOW_LEFT = {
    "break": "leaves the loop",
    "while": "leaves the loop",
    "for": "runs the loop as often as its own data last",
    "continue": "skips the rest of the step",
    "return": "leaves the function",
    "if": "comes to a collective or not",
}
#: What to do: about a layer that some ranks leave out, a loop that ends at different steps, and any other exit.
_REMEDIES = {
    "layer": "Wrap the model with find_unused_parameters=True, or use the layer in every step.",
    "for": "Let all ranks take as many steps as the one with the fewest data (all-reduce the minimum), or train within"
    " torch.distributed.algorithms.Join.",
    "": "Let all ranks decide together: all-reduce or broadcast the condition before it is tested (Accelerate:"
    " set_trigger() and check_trigger()).",
}
#: What shows that a script is for several ranks.
_OF_SEVERAL_RANKS = ("uses_ddp", "uses_fsdp", "training_framework", "backend")


@rule(
    "TRN001",
    "rank-local-exit-from-loop",
    severity=Severity.WARNING,
    otherwise="no program is followed in which ranks exchange gradients",
    passes_with=("program_followed",),
    confidence=Confidence.MEDIUM,
)
def rank_local_exit_from_loop(job: Job) -> Iterator[Verdict]:
    """A rank leaves a loop or skips a step depending on a value that differs between ranks.

    What it checks: No `break`, `continue`, `return` or branch that decides whether a rank comes to a collective
    (`backward` of a distributed model, an all-reduce, a barrier) depends on the rank's own data, loss, random numbers
    or clock, and no loop around a collective runs as often as the rank's own data last. The program is followed on
    paper, through its functions and modules, from the launch line on.

    Why it matters: The ranks do not leave at the same step. The first one ends or continues to other collectives, and
    the others wait for it in the step until the timeout, usually 10 to 30 minutes, kills the job.

    Example: `accelerator.backward(loss)` and `if loss.item() < best: break` in one loop.

    Fix: Let the ranks agree first: all-reduce or broadcast the decision, or use `accelerator.set_trigger()` and
    `check_trigger()`.

    Known limits: A value that happens to be the same on every rank (every rank reads the same validation data) does no
    harm.
    """
    for launch in job.launches:
        for followed in job.about("program_followed", launch.scope):
            if isinstance(followed.value, Unresolved):
                yield unknown(launch.id, followed.value.why, at=followed)
    for subject, leaving in stated(job, "rank_local_exit"):
        step = leaving.because[0] if leaving.because else leaving
        kind, _, some = joined(leaving.alternatives).partition(" of ")
        early = not_on_several_ranks(job, subject, leaving, "no launch runs this loop")
        if early is not None:
            yield early
            continue
        if kind == "for" and (joined_by := job.about("joins_uneven", leaving.scope)):
            yield unknown(subject, f"{quoted(joined_by[0])} may let the ranks end together", at=joined_by[0])
            continue
        is_layer = "layer" in texts(step.value)
        what = "leaves out a layer" if is_layer else _HOW_LEFT.get(kind, "leaves the loop")
        what += "" if kind == "for" else " depending on its own value"
        waiting = "the exchange of gradients waits for the parameters of" if is_layer else "the others wait for it in"
        under = quoted(leaving) if kind in ("while", "for", "if") else f"`{kind}` under {quoted(leaving)}"
        is_here = step.span.path == leaving.span.path
        place = f"line {step.span.line}" if is_here else f"{step.span.path}:{step.span.line}"
        yield failed(
            subject,
            f"{under}: {'only some ranks come to it' if some else f'each rank {what}'}, and {waiting} {quoted(step)}"
            f" ({place}).",
            at=leaving,
            also=((step, "the others wait here"),),
            remedy=_REMEDIES["layer" if is_layer else "for" if kind == "for" else ""],
        )


@rule(
    "TRN002",
    "collective-under-rank-condition",
    severity=Severity.ERROR,
    otherwise="no collective is under a condition on the rank",
    passes_with=_OF_SEVERAL_RANKS,
)
def collective_under_rank_condition(job: Job) -> Iterator[Verdict]:
    """A collective is in a branch that only some ranks take.

    What it checks: Barriers, reductions, broadcasts and `save_checkpoint` of a DeepSpeed engine are not under `rank ==
    0` or the like, unless the other ranks reach one in the same function too. The same for `get_state_dict` and
    `save_state` of Accelerate where FSDP or ZeRO divides the model among ranks.

    Why it matters: A collective ends when every rank has entered it. The ranks in the branch wait for the others until
    the timeout.

    Example: `if rank == 0: model_engine.save_checkpoint(path)`; every rank has to call it, because each saves its own
    part.

    Fix: Move the call out of the branch, and keep only work of a single rank in it.

    Known limits: Collectives over their own group (`group=...`) are not reported. Another function may contain the
    counterpart: it is an error only where the program was followed on several ranks, and one of them came to it alone.
    """
    for subject, call in (*stated(job, "guarded_collective"), *stated(job, "guarded_gather")):
        divided = _divided(job, call) if call.quantity == "guarded_gather" else True
        if not divided:
            reason = "it waits for other ranks only where the model is divided among them, and nothing says so"
            yield passed(subject) if divided is False else unknown(subject, reason, at=call)
            continue
        guard = call.because[0] if call.because else call
        left_out = [n for c in call.because if c.quantity == "rank_left_out" for n in numbers(c.value)]
        world = [numbers(ranks_started(job, launch.scope)[0]) for launch in launches_of(job, call)]
        if definitely_one_rank(job, call) or (left_out and world and all(n and max(n) <= left_out[0] for n in world)):
            yield passed(subject)
        elif left_out and not all(n and min(n) > left_out[0] for n in world):
            yield unknown(
                subject, f"whether there is a rank {left_out[0]}, which does not call it, is unknown", at=call
            )
        elif not runs_program(job):
            yield unknown(subject, "no launch runs this; the caller may contain the counterpart", at=call)
        else:
            sure = _certainly_waits(job, call)
            yield failed(
                subject,
                f"{quoted(call)} waits for every rank, but is under {quoted(guard)} (line {guard.span.line}), which"
                f" holds for {joined(call.alternatives)} only.",
                at=call,
                also=((guard, "only for " + joined(call.alternatives)),),
                remedy="Move it out of the branch, so that every rank calls it.",
                waits_at="collective",
                severity=None if sure else Severity.WARNING,
                confidence=None if sure else Confidence.MEDIUM,
            )
            for why in [] if sure else _not_followed(job, call):
                yield unknown(subject, f"whether the other ranks come to {quoted(call)} too: {why}", at=call)
    for subject, call in stated(job, "collective_unmatched"):
        if isinstance(call.value, Unresolved):
            yield not_on_several_ranks(job, subject, call) or unknown(
                subject, f"only some ranks come to {quoted(call)}, and {call.value.why}", at=call
            )
    for subject, call in stated(job, "collective_in_rank_loop"):
        yield not_on_several_ranks(job, subject, call) or failed(
            subject,
            f"{quoted(call)} waits for every rank, but is in a loop over {quoted(call.because[0])}, which has"
            " another number of steps on every rank: the longer loops wait for ranks that are done.",
            at=call,
            also=((call.because[0], "depends on the rank"),),
            remedy="Give every rank the same number of steps.",
            waits_at="collective",
        )
    for subject, save in stated(job, "guarded_trainer_save"):
        stages = job.about("zero_stage", save.scope)
        own = job.about("setting.transformers.fsdp", save.scope)
        shards = [
            *stages,
            *job.about("uses_fsdp", save.scope),
            *(claim for claim in own if texts(claim.value) != ("",)),
        ]
        if not shards or definitely_one_rank(job, save):
            continue
        if all(claim.alternatives == (3,) or claim.quantity != "zero_stage" for claim in shards):
            yield failed(
                subject,
                f"{quoted(save)} gathers the parts of the model from every rank ({placed(shards[0])}), but is under"
                f" {quoted(save.because[0])}, which holds for {joined(save.alternatives)} only.",
                at=save,
                also=((save.because[0], "only for " + joined(save.alternatives)), (shards[0], "the model is sharded")),
                remedy="Call it on every rank: the trainer itself writes on the first one only.",
                waits_at="collective",
            )
        else:
            yield passed(subject)


def _divided(job: Job, call: Claim) -> bool | None:
    """Whether the call needs the parts of all ranks; None if it is not known how the model is trained."""
    scope = call.scope
    if job.about("uses_fsdp", scope):
        return True
    kinds = [item for claim in job.about("distributed_type", scope) for item in claim.alternatives]
    if "FSDP" in kinds:
        return True
    stages = [item for claim in job.setting("zero_stage", scope) for item in claim.alternatives]
    if stages:
        # DeepSpeed divides the state of the optimizer from stage 1 on, the model at stage 3.
        least = 3 if "get_state_dict" in call.spelling else 1
        counts = [item for item in stages if isinstance(item, int)]
        return min(counts) >= least if len(counts) == len(stages) else None
    return False if kinds and set(kinds) <= {"MULTI_GPU", "NO"} else None


def _certainly_waits(job: Job, call: Claim) -> bool:
    """Whether several ranks certainly run the script, and one of them alone comes to the call."""
    places = {claim.span for _, claim in stated(job, "collective_unmatched") if isinstance(claim.value, Known)}
    return call.span in places and any(_starts_several(job, launch) for launch in launches_of(job, call))


def _not_followed(job: Job, call: Claim) -> list[str]:
    """Why the program that makes a call cannot be followed to its end; empty where it is followed."""
    followed = [each for launch in launches_of(job, call) for each in job.about("program_followed", launch.scope)]
    return [each.value.why for each in followed if isinstance(each.value, Unresolved)][:1]


def _starts_several(job: Job, launch: Launch) -> bool:
    on_each = job.setting("processes_per_node", launch.scope)
    return certainly_several(ranks_started(job, launch.scope)[0]) or certainly_several(job_value(on_each))


@rule(
    "TRN023",
    "collectives-ordered-by-rank",
    severity=Severity.ERROR,
    otherwise="no condition on the rank decides about collectives",
    passes_with=_OF_SEVERAL_RANKS,
)
def collectives_ordered_by_rank(job: Job) -> Iterator[Verdict]:
    """The two branches of a condition on the rank make different collectives, or in another order.

    What it checks: Where both branches of a condition on the rank only make collectives and computations, they make the
    same ones in the same order.

    Why it matters: Ranks match collectives by their order. One rank reduces while another broadcasts: both wait for
    each other, or one reads the other's data as its own.

    Example: `if rank == 0: all_reduce(a); broadcast(b, 0)` and `else: broadcast(b, 0); all_reduce(a)`.

    Fix: Make the collectives outside the branches, in one order for all ranks.

    Known limits: A branch that calls other functions of the script, or has branches or loops of its own, is not judged.
    """
    for subject, call in stated(job, "collective_order_differs"):
        early = not_on_several_ranks(job, subject, call)
        if early is not None:
            yield early
            continue
        guard = call.because[0]
        yield failed(
            subject,
            f"The branches of {quoted(guard)} (line {guard.span.line}) make {joined(call.alternatives)}: ranks wait"
            " for each other in different collectives.",
            at=call,
            also=((guard, "decides the order"),),
            remedy="Make the same collectives in the same order on every rank, outside the branches.",
            waits_at="collective",
        )


@rule(
    "TRN003",
    "group-destroyed-after-failure",
    severity=Severity.WARNING,
    otherwise="no group is destroyed after a failure",
    passes_with=_OF_SEVERAL_RANKS,
    confidence=Confidence.MEDIUM,
)
def group_destroyed_after_failure(job: Job) -> Iterator[Verdict]:
    """A rank that fails waits for the others in its clean-up instead of ending.

    What it checks: `destroy_process_group` and barriers are not in the `finally` or `except` around the training.

    Why it matters: A rank that has failed (out of memory inside a collective) reaches the clean-up while the others are
    still in the collective. Destroying the group waits for them, they wait for this rank, and no process ends: the
    launcher and --kill-on-bad-exit never see an exit code, and the nodes stay taken until the time limit.

    Example: `try: main()` with `finally: dist.destroy_process_group()` on eight nodes for seven days.

    Fix: Destroy the group only after a run that succeeded (`else:` of the try, or the last line of main), and let an
    exception end the process.

    Known limits: On one node, or where the number of nodes is unknown, the finding is informational: the launcher
    mostly ends the other ranks in time.
    """
    for subject, call in stated(job, "group_left_on_failure"):
        early = not_on_several_ranks(job, subject, call)
        if early is not None:
            yield early
            continue
        if job.value("backend", call.scope) == Known("gloo"):
            # Its connections end with the rank, and the others fail.
            yield passed(subject)
            continue
        nodes = on_several_nodes(job, call)
        limit = next(iter(job.setting("time_limit_s")), None)
        over = f" on each of {nodes} nodes" if nodes else ""
        until = f", until {quoted(limit)} ends it" if limit is not None else ""
        yield failed(
            subject,
            f"{quoted(call)} runs when a rank has failed{over}: it waits for ranks that wait in a collective,"
            f" so no process exits{until}.",
            at=call,
            also=((limit, "keeps the nodes until then"),) if limit is not None else (),
            remedy="Call it only after success (at the end of the run, or in the `else` of the try), and let the"
            " exception end the process.",
            severity=None if nodes else Severity.INFO,
        )


@rule(
    "TRN006",
    "step-failure-swallowed",
    severity=Severity.WARNING,
    otherwise="no loop continues after a failed step",
    passes_with=_OF_SEVERAL_RANKS,
    confidence=Confidence.MEDIUM,
)
def step_failure_swallowed(job: Job) -> Iterator[Verdict]:
    """A rank whose step failed continues with the next batch, while the others wait in the failed step.

    What it checks: A handler for failures of any kind (RuntimeError, out of memory, Exception) around a step that is a
    collective ends the rank, raises the error again, or lets the ranks agree; it does not just continue the loop.

    Why it matters: The others are in the all-reduce of the step that failed here. This rank's next collective is a
    different one: the job hangs until the timeout, or sums gradients of different batches.

    Example: `try: loss.backward()` with `except RuntimeError: optimizer.zero_grad()` in the loop over a loader.

    Fix: Let the exception end the process and the launcher restart the job, or all-reduce "did it fail" before every
    rank skips the step.

    Known limits: Functions in other files that the handler calls are not followed.
    """
    for subject, handler in stated(job, "step_failure_swallowed"):
        step = handler.because[0] if handler.because else handler
        yield not_on_several_ranks(job, subject, handler, "no launch runs this loop") or failed(
            subject,
            f"{quoted(handler)} continues the loop when {quoted(step)} (line {step.span.line}) has failed"
            " on this rank, while the others wait in that step.",
            at=handler,
            also=((step, "the others wait here"),),
            remedy="Let the exception end the process, or all-reduce whether a rank has failed and skip the step on"
            " all of them.",
        )


#: With more files than this, one that was not read may exchange the gradients.
_FEW_FILES = 12


@rule(
    "TRN022",
    "gradients-never-exchanged",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no script joins a group of ranks and steps an optimizer",
)
def gradients_never_exchanged(job: Job) -> Iterator[Verdict]:
    """The ranks of a job train without exchanging gradients, each its own model.

    What it checks: A script that joins its ranks to a group and steps an optimizer in a loop wraps its model (DDP,
    FSDP, `fleet.distributed_model`), wraps its optimizer (Horovod) or reduces the gradients itself. The wrapped model
    is the one that is called: not `model.module(x)`, and no optimizer step wholly under `no_sync()`.

    Why it matters: Starting the process group alone exchanges nothing. Each rank trains on its share of the data, and
    all but the model of rank 0 is thrown away: the job costs as many GPUs as it has ranks and learns from the data of
    one.

    Example: `dist.init_process_group("nccl")` and `model = Net().cuda()` without DistributedDataParallel.

    Fix: torch: `DistributedDataParallel(model, device_ids=[local_rank])`. Paddle: `fleet.distributed_model(model)` or
    `paddle.DataParallel(model)`. Horovod: `hvd.DistributedOptimizer(optimizer)`.

    Known limits: A word that may exchange gradients anywhere in the job's files counts as an exchange. With a library
    that is not known the result is unknown. `fleet.distributed_optimizer` alone exchanges nothing in a dynamic graph.
    """
    for subject, taken in stated(job, "gradients_taken"):
        joins = [claim for claim in job.about("ranks_joined", taken.scope) if claim.span.path in started_files(job)]
        servers = [claim for claim in job.about("ps_mode", taken.scope) if True in claim.alternatives]
        if not joins or servers:
            continue
        yield _verdict(job, subject, taken, joins[0])
    for subject, around in stated(job, "gradient_exchange_bypassed"):
        if definitely_one_rank(job, around):
            yield passed(subject)
            continue
        yield failed(
            subject,
            f"{quoted(around)} goes past the wrapper in every step, so that no gradient is exchanged.",
            at=around,
            remedy="Call the wrapped model itself, and leave no_sync() for the last backward before the step.",
        )


def _verdict(job: Job, subject: str, taken: Claim, joins: Claim) -> Verdict:
    if definitely_one_rank(job, taken) or job.about("gradients_exchanged", taken.scope):
        return passed(subject)
    libraries = job.about("exchange_libraries", taken.scope)
    if libraries:
        named = joined(name for value in libraries[0].alternatives if isinstance(value, tuple) for name in value)
        return unknown(subject, f"{named} may exchange the gradients of {quoted(taken)}", at=taken)
    if len(job.files) > _FEW_FILES:
        return unknown(subject, f"another file may exchange the gradients of {quoted(taken)}", at=taken)
    several = any(certainly_several(ranks_started(job, launch.scope)[0]) for launch in launches_of(job, taken))
    if joins.condition and not several:
        return unknown(subject, f"{quoted(joins)} is called under `{joins.condition}`", at=joins)
    return failed(
        subject,
        f"{quoted(joins)} joins the ranks, but nothing exchanges the gradients of {quoted(taken)}: each rank trains its"
        " own model.",
        at=joins,
        also=((taken, "gradients of this rank only"),),
        remedy=_remedy(joins),
    )


def _remedy(joins: Claim) -> str:
    """The wrapper of the framework that joins the ranks."""
    name = joined(joins.alternatives)
    if "horovod" in name or name.startswith("hvd"):
        return "Wrap the optimizer: optimizer = hvd.DistributedOptimizer(optimizer)."
    if "fleet" in name:
        return "Wrap the model: model = fleet.distributed_model(model)."
    if name.endswith("init_parallel_env"):
        return "Wrap the model: model = paddle.DataParallel(model)."
    return "Wrap the model: model = DistributedDataParallel(model, device_ids=[local_rank])."
