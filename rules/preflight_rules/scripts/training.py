"""Training in a script: wrappers of the model, the loop of steps, saving, profiling and sharing the model."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Known, Launch, Unresolved
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided, unknown
from preflight.plugins.claim_text import joined, placed, quoted, where, why_unresolved
from preflight.plugins.questions import SubjectQuestion, claims_about
from preflight_rules.launches import (
    SCHEDULERS,
    certainly_several,
    definitely_one_rank,
    launches_of,
    not_on_several_ranks,
    on_several_nodes,
    ranks_started,
    runs_program,
    started_files,
    subject_claims,
)
from preflight_rules.sizes.fsdp import is_value, only_claim


@rule(
    "TRN007",
    "ddp-over-several-devices",
    severity=Severity.ERROR,
    applies_to="torch >= 1.9",
    otherwise="no script passes device_ids to DistributedDataParallel",
)
def ddp_over_several_devices(job: Job) -> Iterator[Verdict]:
    """DistributedDataParallel is given more than one device.

    What it checks: If `device_ids` is a literal, it contains only one device, the rank's own.

    Why it matters: One process drives one GPU. torch raises ValueError: "device_ids can only be None or contain a
    single element".

    Example: `DistributedDataParallel(model, device_ids=[0, 1])`.

    Fix: `device_ids=[local_rank]`, and one process for each GPU.

    Known limits: A list known only at run time is not judged.
    """
    for subject, devices in subject_claims(job, "ddp_device_count"):
        counts = numbers(devices.value)
        if isinstance(devices.value, Unresolved) or why_unresolved((devices,)) is not None:
            yield unknown(subject, f"the number of devices in {quoted(devices)} is known only at run time", at=devices)
        elif counts and min(counts) > 1:
            yield failed(
                subject,
                f"{quoted(devices)} names {joined(counts)} devices, but DistributedDataParallel accepts one per"
                " process and stops with ValueError.",
                at=devices,
                remedy="Pass only the rank's own device, device_ids=[local_rank], and start one process for each GPU.",
            )
        else:
            yield passed(subject)


@rule(
    "TRN008",
    "sync-batchnorm-after-wrapping",
    severity=Severity.WARNING,
    otherwise="no model is wrapped in DistributedDataParallel",
    passes_with=("uses_ddp",),
)
def sync_batchnorm_after_wrapping(job: Job) -> Iterator[Verdict]:
    """BatchNorm is converted to SyncBatchNorm after the model was wrapped in DDP.

    What it checks: `convert_sync_batchnorm` is called before the model is passed to DistributedDataParallel.

    Why it matters: The wrapper has set up buffers and hooks for the original layers, so statistics are not synchronized
    as intended, or the ranks' models drift apart.

    Example: `model = DDP(model)`, then `model = nn.SyncBatchNorm.convert_sync_batchnorm(model)`.

    Fix: Swap the two lines.

    Known limits: Reported only if both are in one function and use the same variable.
    """
    for subject, conversion in subject_claims(job, "sync_batchnorm_late"):
        wrap = conversion.because[0] if conversion.because else conversion
        if conversion.condition != wrap.condition:
            yield unknown(
                subject, f"{quoted(conversion)} depends on the branch `{conversion.condition}`", at=conversion
            )
            continue
        yield failed(
            subject,
            f"{quoted(conversion)} converts a model that DistributedDataParallel has wrapped on line "
            f"{wrap.span.line}; the conversion must come first.",
            at=conversion,
            also=((wrap, "wrapped here"),),
            remedy="Convert first, then wrap.",
        )


@rule(
    "TRN009",
    "gpu-never-chosen",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no script uses the default GPU",
)
def gpu_never_chosen(job: Job) -> Iterator[Verdict]:
    """A script for several ranks moves its model to the default GPU without selecting a GPU per rank.

    What it checks: A script that several ranks run on one node selects a different GPU for each: `set_device`,
    LOCAL_RANK, `device_ids`, or a mask. A literal device, or the default of an option, is the same for all.

    Why it matters: `model.cuda()`, `.to("cuda:0")` and Paddle's `CUDAPlace(0)` mean GPU 0 in every process. NCCL stops
    with "Duplicate GPU detected", or the ranks share one GPU's memory while the other GPUs are idle.

    Example: `dist.init_process_group("nccl")`, `model.cuda()`, `DDP(model)`, started with `--nproc_per_node=4`.

    Fix: `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))` before the first use of the GPU. Paddle:
    `paddle.set_device("gpu")`, which uses the launcher's GPU. Horovod: the index is `hvd.local_rank()`.

    Known limits: With a scheduler that shows each task one GPU the script is correct; then, and for a script that no
    launch starts, the result is unknown. A module that the script imports may select the GPU in any function.
    """
    for subject, move in subject_claims(job, "device_not_chosen"):
        launches = list(launches_of(job, move))
        if definitely_one_rank(job, move):
            yield passed(subject)
            continue
        verdict: Verdict = unknown(subject, f"the number of ranks per node that run {quoted(move)} is unknown", at=move)
        for launch in launches:
            processes = _ranks_of_node(job, launch)
            if launch.launcher == "srun" or not certainly_several(job_value(processes)) or not processes:
                continue
            if _sees_one_gpu(job, launch) or len(job.files) > _MAX_FILES:
                continue
            if _is_passed(job, launch, move):
                verdict = passed(subject)
                continue
            verdict = failed(
                launch.id,
                f"{quoted(move)} means GPU 0 in each of the {joined(numbers(job_value(processes)))} ranks of a node, "
                "and the script does not select another GPU.",
                at=move,
                also=((processes[0], "ranks per node"),),
                remedy=_gpu_choice_text(job, launch, move),
            )
            break
        yield verdict


def _ranks_of_node(job: Job, launch: Launch) -> tuple[Claim, ...]:
    """Return the claims about ranks per node. Without a scheduler or hosts, mpirun starts all ranks on its own node."""
    rank_claims = job.setting("processes_per_node", launch.scope)
    has_hosts = job.setting("hosts", launch.scope) or any(claim.source in SCHEDULERS for claim in job.claims)
    if rank_claims or has_hosts or "mpirun" not in launch.wrappers:
        return rank_claims
    return job.setting("tasks", launch.scope)


def _is_passed(job: Job, launch: Launch, move: Claim) -> bool:
    """Return whether the launcher passes a local rank, which replaces the option's default, to each process."""
    passed_options = [claim for claim in job.about("rank_argument", launch.scope) if claim.scope.launch == launch.id]
    is_local_rank = any("local_rank" in text for text in (move.spelling, *texts(move.value)))
    return bool(passed_options and is_local_rank and job.about("local_rank_argument", launch.scope))


#: With more files than this, another file may choose the GPU.
_MAX_FILES = 6


def _sees_one_gpu(job: Job, launch: Launch) -> bool:
    """Return whether each process may see only one GPU. A mask with several GPUs shows all of them to every process."""
    masks = job.about("env.CUDA_VISIBLE_DEVICES", launch.scope)
    return any(not texts(mask.value) or not all("," in text for text in texts(mask.value)) for mask in masks)


def _gpu_choice_text(job: Job, launch: Launch, move: Claim) -> str:
    """Return the remedy: how a rank selects its GPU in the script's framework, with its launcher's variables."""
    if any(claim.source == "paddle" for claim in job.about("parallel_environment", launch.scope)):
        return (
            'Use the GPU that the launcher assigned: paddle.set_device("gpu"), or '
            'paddle.CUDAPlace(int(os.environ["FLAGS_selected_gpus"])) for an executor.'
        )
    if "Place" in quoted(move):
        return 'Use the GPU that the launcher assigned: fluid.CUDAPlace(int(os.environ["FLAGS_selected_gpus"])).'
    if job.about("horovod_started", launch.scope):
        return "Select the GPU after hvd.init(): torch.cuda.set_device(hvd.local_rank())."
    if launch.launcher == "torch.distributed.launch" and job.about("local_rank_argument", launch.scope):
        return "Select the GPU first: torch.cuda.set_device(args.local_rank)."
    variable = "OMPI_COMM_WORLD_LOCAL_RANK" if launch.launcher in ("mpirun", "mpiexec") else "LOCAL_RANK"
    return f'Select the GPU first: torch.cuda.set_device(int(os.environ["{variable}"])).'


@rule(
    "HVD020",
    "horovod-first-weights-not-broadcast",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no script wraps its optimizer with Horovod",
)
def horovod_first_weights_not_broadcast(job: Job) -> Iterator[Verdict]:
    """A Horovod script averages gradients, but its ranks start with different weights.

    What it checks: A script that wraps its optimizer or tape broadcasts the initial weights from one rank, or keeps
    them in an elastic state.

    Why it matters: Each rank initializes different random weights. Averaged gradients are then applied to different
    models, which stay different; the loss looks only slightly worse.

    Example: `hvd.DistributedOptimizer(optimizer)` without `hvd.broadcast_parameters(model.state_dict(), root_rank=0)`.

    Fix: Broadcast parameters and optimizer state after building both.

    Known limits: A broadcast in another file is not seen; with a fixed seed or loaded weights, the ranks are equal
    anyway.
    """
    reported_paths: set[str] = set()
    for subject, wrapper in subject_claims(job, "horovod_optimizer"):
        if job.about("horovod_broadcasts") or definitely_one_rank(job, wrapper) or wrapper.span.path in reported_paths:
            yield passed(subject)
        elif wrapper.span.path not in started_files(job):
            yield unknown(subject, "another file may broadcast the weights", at=wrapper)
        else:
            reported_paths.add(wrapper.span.path)
            yield failed(
                subject,
                f"{quoted(wrapper)} averages gradients, but nothing broadcasts the initial weights: every rank "
                "starts with different weights.",
                at=wrapper,
                remedy="After building the model and the optimizer, call hvd.broadcast_parameters(model.state_dict(),"
                " 0) and hvd.broadcast_optimizer_state(optimizer, root_rank=0) (Keras:"
                " BroadcastGlobalVariablesCallback).",
            )


@rule(
    "FSD013",
    "optimizer-made-before-fsdp",
    severity=Severity.ERROR,
    otherwise="no optimizer is created before FSDP shards its model",
    passes_with=("uses_fsdp",),
)
def optimizer_made_before_fsdp(job: Job) -> Iterator[Verdict]:
    """An optimizer is given the parameters of a model before FSDP shards them.

    What it checks: In one function, an optimizer created from `model.parameters()` comes after
    `FullyShardedDataParallel(model)` or `fully_shard(model)`. Under Accelerate's FSDP with `fsdp_use_orig_params:
    false` it comes after the model's `prepare`. With Lightning's `fsdp_native`, `configure_optimizers` uses
    `self.trainer.model.parameters()`.

    Why it matters: FSDP replaces the parameters that the optimizer has with flat or sharded ones, so the optimizer does
    not update the model's parameters, and the loss does not change. Lightning's `fsdp_native` notices this and stops.

    Example: `optimizer = AdamW(model.parameters())`, then `model = FSDP(model)`.

    Fix: Shard the model first, then create the optimizer from the sharded model's parameters.

    Known limits: `use_orig_params=True` keeps the parameters, so nothing is reported there. An optimizer created in
    another function is not seen.
    """
    for subject, optimizer in subject_claims(job, "early_optimizer"):
        kind = next(iter(texts(optimizer.value)), "")
        if kind == "fsdp":
            yield _judge_wrapped(subject, optimizer)
        elif kind == "lightning":
            strategy = next((c for c in job.about("lightning_strategy") if c.span.path == optimizer.span.path), None)
            if strategy is not None and "fsdp_native" in strategy.spelling:
                yield undecided(subject, (strategy,)) or failed(
                    subject,
                    f"{quoted(optimizer)} is given the module's own parameters, but {placed(strategy)} has already "
                    "sharded them: Lightning stops because the optimizer has none of FSDP's parameters.",
                    at=optimizer,
                    also=((strategy, "the strategy"),),
                    remedy="Pass `self.trainer.model.parameters()` to the optimizer.",
                )
        else:
            yield from _judge_prepared(job, subject, optimizer)


def _judge_wrapped(subject: str, optimizer: Claim) -> Verdict:
    division = optimizer.because[0]
    if optimizer.condition != division.condition:
        return unknown(subject, f"{quoted(division)} depends on the branch `{division.condition}`", at=division)
    return failed(
        subject,
        f"{quoted(optimizer)} is given the parameters before {placed(division)} shards them: the optimizer "
        "updates parameters that the model no longer uses.",
        at=optimizer,
        also=((division, "divided here"),),
        remedy="Create the optimizer after the model is sharded, from the sharded model's parameters.",
        severity=Severity.WARNING,
    )


def _judge_prepared(job: Job, subject: str, optimizer: Claim) -> Iterator[Verdict]:
    for launch in launches_of(job, optimizer):
        keeps_params = only_claim(job, "fsdp_use_orig_params", launch.scope)
        kind = only_claim(job, "distributed_type", launch.scope)
        version = only_claim(job, "fsdp_version", launch.scope)
        if keeps_params is None or kind is None or not is_value(kind, "FSDP") or is_value(version, 2):
            continue
        if verdict := undecided(subject, (keeps_params,)):
            yield verdict
        elif not is_value(keeps_params, False):
            yield passed(subject)
        else:
            yield failed(
                subject,
                f"{quoted(optimizer)} is given the parameters before `prepare` wraps the model, but "
                f"{placed(keeps_params)} makes FSDP replace them.",
                at=optimizer,
                also=((keeps_params, "the parameters are replaced"),),
                remedy="Prepare the model first and create the optimizer from it, or set fsdp_use_orig_params to true.",
                severity=Severity.WARNING,
            )
        return


# Training loops in which one rank diverges from the others, or the ranks do not exchange their gradients.


#: The effect on the rank for which the condition is true, by kind of statement.
_EFFECT_BY_STATEMENT = {
    "break": "leaves the loop",
    "while": "leaves the loop",
    "for": "loops over its own data",
    "continue": "skips the rest of the step",
    "return": "leaves the function",
    "if": "reaches a collective or not,",
}
#: Remedies for a layer that some ranks skip, a loop that ends at different steps, and any other exit.
_REMEDIES = {
    "layer": "Wrap the model with find_unused_parameters=True, or use the layer in every step.",
    "for": "Make all ranks take as many steps as the rank with the least data (all-reduce the minimum), or train "
    "within torch.distributed.algorithms.Join.",
    "": "Make all ranks decide together: all-reduce or broadcast the condition before it is tested (Accelerate: "
    "set_trigger() and check_trigger()).",
}
#: Quantities that show that a script is for several ranks.
_MULTI_RANK_QUANTITIES = ("uses_ddp", "uses_fsdp", "training_framework", "backend")


@rule(
    "TRN001",
    "rank-local-exit-from-loop",
    severity=Severity.WARNING,
    otherwise="no program in which ranks exchange gradients could be followed",
    passes_with=("program_followed",),
    confidence=Confidence.MEDIUM,
)
def rank_local_exit_from_loop(job: Job) -> Iterator[Verdict]:
    """A rank leaves a loop or skips a step depending on a value that differs between ranks.

    What it checks: No `break`, `continue`, `return` or branch that decides whether a rank reaches a collective
    (`backward` of a distributed model, an all-reduce, a barrier) depends on the rank's own data, loss, random numbers
    or clock, and no loop around a collective has a length that depends on the rank's own data. The program is
    simulated, through its functions and modules, from the launch line.

    Why it matters: The ranks do not leave at the same step. The first one ends or continues to other collectives, and
    the others wait in the step until the timeout, usually 10 to 30 minutes, ends the job.

    Example: `accelerator.backward(loss)` and `if loss.item() < best: break` in the same loop.

    Fix: Make the ranks agree first: all-reduce or broadcast the decision, or use `accelerator.set_trigger()` and
    `check_trigger()`.

    Known limits: A value that happens to be the same on every rank, because every rank reads the same validation data,
    is also reported, although it is harmless.
    """
    for launch in job.launches:
        for program in job.about("program_followed", launch.scope):
            if isinstance(program.value, Unresolved):
                yield unknown(launch.id, program.value.why, at=program)
    for subject, exit_claim in subject_claims(job, "rank_local_exit"):
        step = exit_claim.because[0] if exit_claim.because else exit_claim
        kind, _, partial = joined(exit_claim.alternatives).partition(" of ")
        if verdict := not_on_several_ranks(job, subject, exit_claim, "no launch runs this loop"):
            yield verdict
            continue
        if kind == "for" and (joined_by := job.about("joins_uneven", exit_claim.scope)):
            yield unknown(subject, f"{quoted(joined_by[0])} may make the ranks stop at the same step", at=joined_by[0])
            continue
        is_layer = "layer" in texts(step.value)
        effect = "leaves out a layer" if is_layer else _EFFECT_BY_STATEMENT.get(kind, "leaves the loop")
        effect += "" if kind == "for" else " depending on its own value"
        wait_text = "the gradient exchange waits for the parameters of" if is_layer else "the others wait in"
        condition = quoted(exit_claim) if kind in ("while", "for", "if") else f"`{kind}` under {quoted(exit_claim)}"
        is_here = step.span.path == exit_claim.span.path
        location = f"line {step.span.line}" if is_here else f"{step.span.path}:{step.span.line}"
        yield failed(
            subject,
            f"{condition}: {'only some ranks reach it' if partial else f'each rank {effect}'}, and {wait_text}"
            f" {quoted(step)} ({location}).",
            at=exit_claim,
            also=((step, "the others wait here"),),
            remedy=_REMEDIES["layer" if is_layer else "for" if kind == "for" else ""],
        )


@rule(
    "TRN002",
    "collective-under-rank-condition",
    severity=Severity.ERROR,
    otherwise="no collective is under a condition on the rank",
    passes_with=_MULTI_RANK_QUANTITIES,
)
def collective_under_rank_condition(job: Job) -> Iterator[Verdict]:
    """A collective is in a branch that only some ranks take.

    What it checks: Barriers, reductions, broadcasts and `save_checkpoint` of a DeepSpeed engine are not under `rank ==
    0` or the like, unless the other ranks also reach one in the same function. The same applies to Accelerate's
    `get_state_dict` and `save_state` if FSDP or ZeRO shards the model.

    Why it matters: A collective ends when every rank has entered it. The ranks in the branch wait for the others until
    the timeout.

    Example: `if rank == 0: model_engine.save_checkpoint(path)`; every rank must call it, because each saves its own
    shard.

    Fix: Move the call out of the branch, and keep only work of a single rank in it.

    Known limits: Collectives with a separate group (`group=...`) are not reported. Another function may contain the
    counterpart: the finding is an error only if the program was simulated on several ranks and only one of them reached
    the call.
    """
    for subject, call in (*subject_claims(job, "guarded_collective"), *subject_claims(job, "guarded_gather")):
        needs_all = _needs_all_parts(job, call) if call.quantity == "guarded_gather" else True
        if not needs_all:
            reason = "it waits for other ranks only if the model is sharded, which is unknown"
            yield passed(subject) if needs_all is False else unknown(subject, reason, at=call)
            continue
        guard = call.because[0] if call.because else call
        first_left_out = [n for c in call.because if c.quantity == "rank_left_out" for n in numbers(c.value)]
        rank_counts = [numbers(ranks_started(job, launch.scope)[0]) for launch in launches_of(job, call)]
        if definitely_one_rank(job, call) or (
            first_left_out and rank_counts and all(n and max(n) <= first_left_out[0] for n in rank_counts)
        ):
            yield passed(subject)
        elif first_left_out and not all(n and min(n) > first_left_out[0] for n in rank_counts):
            yield unknown(
                subject, f"whether there is a rank {first_left_out[0]}, which does not call it, is unknown", at=call
            )
        elif not runs_program(job):
            yield unknown(subject, "no launch runs this; the caller may contain the counterpart", at=call)
        else:
            is_certain = _certainly_waits(job, call)
            yield failed(
                subject,
                f"{quoted(call)} waits for every rank, but because of {quoted(guard)} (line {guard.span.line}), it "
                f"runs only on {joined(call.alternatives)}.",
                at=call,
                also=((guard, "only for " + joined(call.alternatives)),),
                remedy="Move it out of the branch, so that every rank calls it.",
                waits_at="collective",
                severity=None if is_certain else Severity.WARNING,
                confidence=None if is_certain else Confidence.MEDIUM,
            )
            for why in [] if is_certain else _unfollowed_reasons(job, call):
                yield unknown(subject, f"whether the other ranks also reach {quoted(call)} is unknown: {why}", at=call)
    for subject, call in subject_claims(job, "collective_unmatched"):
        if isinstance(call.value, Unresolved):
            yield not_on_several_ranks(job, subject, call) or unknown(
                subject, f"only some ranks reach {quoted(call)}, and {call.value.why}", at=call
            )
    for subject, call in subject_claims(job, "collective_in_rank_loop"):
        yield not_on_several_ranks(job, subject, call) or failed(
            subject,
            f"{quoted(call)} waits for every rank, but is in a loop over {quoted(call.because[0])}, which has a "
            "different number of steps on each rank: the longer loops wait for ranks that have finished.",
            at=call,
            also=((call.because[0], "depends on the rank"),),
            remedy="Give every rank the same number of steps.",
            waits_at="collective",
        )
    for subject, save in subject_claims(job, "guarded_trainer_save"):
        stages = job.about("zero_stage", save.scope)
        trainer_fsdp = job.about("setting.transformers.fsdp", save.scope)
        shards = [
            *stages,
            *job.about("uses_fsdp", save.scope),
            *(claim for claim in trainer_fsdp if texts(claim.value) != ("",)),
        ]
        if not shards or definitely_one_rank(job, save):
            continue
        if all(claim.alternatives == (3,) or claim.quantity != "zero_stage" for claim in shards):
            yield failed(
                subject,
                f"{quoted(save)} gathers the model's shards from every rank ({placed(shards[0])}), but because of "
                f"{quoted(save.because[0])}, it runs only on {joined(save.alternatives)}.",
                at=save,
                also=((save.because[0], "only for " + joined(save.alternatives)), (shards[0], "the model is sharded")),
                remedy="Call it on every rank: the trainer itself writes only on the first rank.",
                waits_at="collective",
            )
        else:
            yield passed(subject)


def _needs_all_parts(job: Job, call: Claim) -> bool | None:
    """Return whether the call needs the shards of all ranks; None if the kind of parallelism is unknown."""
    scope = call.scope
    if job.about("uses_fsdp", scope):
        return True
    types = [item for claim in job.about("distributed_type", scope) for item in claim.alternatives]
    if "FSDP" in types:
        return True
    stages = [item for claim in job.setting("zero_stage", scope) for item in claim.alternatives]
    if stages:
        # DeepSpeed divides the state of the optimizer from stage 1 on, the model at stage 3.
        min_stage = 3 if "get_state_dict" in call.spelling else 1
        known_stages = [item for item in stages if isinstance(item, int)]
        return min(known_stages) >= min_stage if len(known_stages) == len(stages) else None
    return False if types and set(types) <= {"MULTI_GPU", "NO"} else None


def _certainly_waits(job: Job, call: Claim) -> bool:
    """Return whether several ranks certainly run the script, and only one of them reaches the call."""
    unmatched_spans = {
        claim.span for _, claim in subject_claims(job, "collective_unmatched") if isinstance(claim.value, Known)
    }
    return call.span in unmatched_spans and any(_starts_several(job, launch) for launch in launches_of(job, call))


def _unfollowed_reasons(job: Job, call: Claim) -> list[str]:
    """Return the first reason why the program of a call cannot be followed to its end; empty if it can be followed."""
    programs = [each for launch in launches_of(job, call) for each in job.about("program_followed", launch.scope)]
    return [each.value.why for each in programs if isinstance(each.value, Unresolved)][:1]


def _starts_several(job: Job, launch: Launch) -> bool:
    processes = job.setting("processes_per_node", launch.scope)
    return certainly_several(ranks_started(job, launch.scope)[0]) or certainly_several(job_value(processes))


@rule(
    "TRN023",
    "collectives-ordered-by-rank",
    severity=Severity.ERROR,
    otherwise="no collective is under a condition on the rank",
    passes_with=_MULTI_RANK_QUANTITIES,
)
def collectives_ordered_by_rank(job: Job) -> Iterator[Verdict]:
    """The two branches of a condition on the rank call different collectives, or the same collectives in a different
    order.

    What it checks: If both branches of a condition on the rank contain only collectives and computations, they call the
    same collectives in the same order.

    Why it matters: Ranks match collectives by their order. One rank reduces while another broadcasts: both wait for
    each other, or one reads the other's data as its own.

    Example: `if rank == 0: all_reduce(a); broadcast(b, 0)` and `else: broadcast(b, 0); all_reduce(a)`.

    Fix: Call the collectives outside the branches, in the same order on all ranks.

    Known limits: A branch that calls other functions of the script, or has its own branches or loops, is not judged.
    """
    for subject, call in subject_claims(job, "collective_order_differs"):
        if verdict := not_on_several_ranks(job, subject, call):
            yield verdict
            continue
        guard = call.because[0]
        yield failed(
            subject,
            f"The branches of {quoted(guard)} (line {guard.span.line}) call {joined(call.alternatives)}: so ranks "
            "wait for each other in different collectives.",
            at=call,
            also=((guard, "decides the order"),),
            remedy="Call the same collectives in the same order on every rank, outside the branches.",
            waits_at="collective",
        )


@rule(
    "TRN003",
    "group-destroyed-after-failure",
    severity=Severity.WARNING,
    otherwise="no script destroys its process group after a failure",
    passes_with=_MULTI_RANK_QUANTITIES,
    confidence=Confidence.MEDIUM,
)
def group_destroyed_after_failure(job: Job) -> Iterator[Verdict]:
    """A failed rank waits for the others in its cleanup instead of ending.

    What it checks: `destroy_process_group` and barriers are not in the `finally` or `except` around the training.

    Why it matters: A rank that has failed (out of memory inside a collective) reaches the cleanup while the others are
    still in the collective. Destroying the group waits for them, they wait for this rank, and no process ends: the
    launcher and --kill-on-bad-exit never see an exit code, and the nodes stay occupied until the time limit.

    Example: `try: main()` with `finally: dist.destroy_process_group()` on eight nodes for seven days.

    Fix: Destroy the group only after success (`else:` of the try, or the last line of main), and let an exception end
    the process.

    Known limits: On one node, or if the number of nodes is unknown, the finding is informational: the launcher usually
    ends the other ranks in time.
    """
    for subject, call in subject_claims(job, "group_left_on_failure"):
        if verdict := not_on_several_ranks(job, subject, call):
            yield verdict
            continue
        if job.value("backend", call.scope) == Known("gloo"):
            # Gloo's connections close when the rank ends, so the other ranks fail.
            yield passed(subject)
            continue
        nodes = on_several_nodes(job, call)
        limit = next(iter(job.setting("time_limit_s")), None)
        node_text = f" on each of {nodes} nodes" if nodes else ""
        end_text = f", until {quoted(limit)} ends it" if limit is not None else ""
        yield failed(
            subject,
            f"{quoted(call)} runs when a rank has failed{node_text}: it waits for ranks that are waiting in a "
            f"collective, so no process exits{end_text}.",
            at=call,
            also=((limit, "occupies the nodes until then"),) if limit is not None else (),
            remedy="Call it only after success (at the end of the run, or in the `else` of the try), and otherwise "
            "let the exception end the process.",
            severity=None if nodes else Severity.INFO,
        )


@rule(
    "TRN006",
    "step-failure-swallowed",
    severity=Severity.WARNING,
    otherwise="no loop continues after a failed step",
    passes_with=_MULTI_RANK_QUANTITIES,
    confidence=Confidence.MEDIUM,
)
def step_failure_swallowed(job: Job) -> Iterator[Verdict]:
    """A rank whose step failed continues with the next batch, while the others wait in the failed step.

    What it checks: A handler for failures of any kind (RuntimeError, out of memory, Exception) around a step that is a
    collective ends the rank, raises the error again, or makes the ranks agree; it does not just continue the loop.

    Why it matters: The others are in the all-reduce of the step that failed here. This rank's next collective is a
    different one: the job hangs until the timeout, or sums gradients of different batches.

    Example: `try: loss.backward()` with `except RuntimeError: optimizer.zero_grad()` in the loop over a loader.

    Fix: Let the exception end the process and the launcher restart the job, or all-reduce whether the step failed, and
    skip it on every rank.

    Known limits: Functions in other files that the handler calls are not followed.
    """
    for subject, handler in subject_claims(job, "step_failure_swallowed"):
        step = handler.because[0] if handler.because else handler
        yield not_on_several_ranks(job, subject, handler, "no launch runs this loop") or failed(
            subject,
            f"{quoted(handler)} continues the loop when {quoted(step)} (line {step.span.line}) has failed"
            " on this rank, while the others wait in that step.",
            at=handler,
            also=((step, "the others wait here"),),
            remedy="Let the exception end the process, or all-reduce whether a rank has failed and skip the step on "
            "all ranks.",
        )


#: With more files than this, a file that was not read may exchange the gradients.
_FEW_FILES = 12


@rule(
    "TRN022",
    "gradients-never-exchanged",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no script joins a process group and steps an optimizer",
)
def gradients_never_exchanged(job: Job) -> Iterator[Verdict]:
    """The ranks of a job train without exchanging gradients, so each trains its own model.

    What it checks: A script that joins a process group and steps an optimizer in a loop wraps its model (DDP, FSDP,
    `fleet.distributed_model`), wraps its optimizer (Horovod) or reduces the gradients itself. The script calls the
    wrapped model, not `model.module(x)`, and no optimizer step is entirely under `no_sync()`.

    Why it matters: Starting the process group alone exchanges nothing. Each rank trains on its share of the data, and
    all models but rank 0's are thrown away: the job uses as many GPUs as it has ranks, but learns only from the data of
    one.

    Example: `dist.init_process_group("nccl")` and `model = Net().cuda()` without DistributedDataParallel.

    Fix: torch: `DistributedDataParallel(model, device_ids=[local_rank])`. Paddle: `fleet.distributed_model(model)` or
    `paddle.DataParallel(model)`. Horovod: `hvd.DistributedOptimizer(optimizer)`.

    Known limits: Any call in the job's files that may exchange gradients counts as an exchange. With an unknown library
    the result is unknown. `fleet.distributed_optimizer` alone exchanges nothing in a dynamic graph.
    """
    for subject, gradients in subject_claims(job, "gradients_taken"):
        joins = [claim for claim in job.about("ranks_joined", gradients.scope) if claim.span.path in started_files(job)]
        servers = [claim for claim in job.about("ps_mode", gradients.scope) if True in claim.alternatives]
        # A program that is followed shows both.
        joins = [*(claim for claim in gradients.because if claim.quantity == "ranks_joined"), *joins]
        if joins and not servers:
            yield _exchange_verdict(job, subject, gradients, joins[0])
    for subject, bypass in subject_claims(job, "gradient_exchange_bypassed"):
        if definitely_one_rank(job, bypass):
            yield passed(subject)
            continue
        yield failed(
            subject,
            f"{quoted(bypass)} bypasses the wrapper in every step, so no gradients are exchanged.",
            at=bypass,
            remedy="Call the wrapped model itself, and run the last backward pass before the step outside no_sync().",
        )


def _exchange_verdict(job: Job, subject: str, gradients: Claim, joins: Claim) -> Verdict:
    is_followed = joins in gradients.because
    if definitely_one_rank(job, gradients) or (job.about("gradients_exchanged", gradients.scope) and not is_followed):
        return passed(subject)
    libraries = job.about("exchange_libraries", gradients.scope)
    if libraries and not is_followed:
        names = joined(name for value in libraries[0].alternatives if isinstance(value, tuple) for name in value)
        return unknown(subject, f"{names} may exchange the gradients of {quoted(gradients)}", at=gradients)
    if len(job.files) > _FEW_FILES and not is_followed:
        return unknown(subject, f"another file may exchange the gradients of {quoted(gradients)}", at=gradients)
    is_multi_rank = any(
        certainly_several(ranks_started(job, launch.scope)[0]) for launch in launches_of(job, gradients)
    )
    if joins.condition and not is_multi_rank:
        return unknown(subject, f"{quoted(joins)} is called under `{joins.condition}`", at=joins)
    return failed(
        subject,
        f"{quoted(joins)} joins the ranks, but nothing exchanges the gradients of {quoted(gradients)}: each rank"
        " trains its own model.",
        at=joins,
        also=((gradients, "gradients of this rank only"),),
        remedy=_wrapper_remedy(joins),
    )


def _wrapper_remedy(joins: Claim) -> str:
    """Return the remedy: the wrapper of the framework that joins the ranks."""
    name = joined(joins.alternatives)
    if "horovod" in name or name.startswith("hvd"):
        return "Wrap the optimizer: optimizer = hvd.DistributedOptimizer(optimizer)."
    if "fleet" in name:
        return "Wrap the model: model = fleet.distributed_model(model)."
    if name.startswith("ray."):
        return "Wrap the model: model = ray.train.torch.prepare_model(model)."
    if name.endswith("init_parallel_env"):
        return "Wrap the model: model = paddle.DataParallel(model)."
    return "Wrap the model: model = DistributedDataParallel(model, device_ids=[local_rank])."


# What a training script does beside its steps: saving, profiling, sharing its model.


#: Least time limit of a job that loses much when a node fails, in seconds.
_LONG_S = 24 * 3600


@rule(
    "FLT021",
    "long-job-saves-nothing",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no job of a day or longer runs a training loop",
)
def long_job_saves_nothing(job: Job) -> Iterator[Verdict]:
    """A job of a day or longer saves nothing before its training ends.

    What it checks: A script that trains in a loop, in a job that requests at least 24 hours, saves something inside a
    loop.

    Why it matters: With hundreds of GPUs, a failure within a day is normal: 466 interruptions in 54 days on 16,000
    GPUs. All training since the start is then lost. The same happens at the time limit.

    Example: `#SBATCH --time=7-00:00:00` and one `torch.save` after the last epoch.

    Fix: Save model, optimizer and step about every hour, and resume from the last checkpoint.

    Known limits: Any call that may save, in any file of the job, counts. The result is unknown if an unknown library
    may save.
    """
    for subject, loop in subject_claims(job, "saves_while_training"):
        limits = [
            claim
            for launch in launches_of(job, loop)
            for claim in job.setting("time_limit_s", launch.scope)
            if numbers(claim.value) and min(numbers(claim.value)) >= _LONG_S
        ]
        if not limits or loop.span.path not in started_files(job):
            continue
        all_loops = job.about("saves_while_training", loop.scope)
        if any(True in claim.alternatives for claim in all_loops) or job.about("checkpoint_path", loop.scope):
            yield passed(subject)
        elif job.about("exchange_libraries", loop.scope) or len(job.files) > _FEW_FILES:
            yield unknown(
                subject, f"a library or another file may save checkpoints in addition to {quoted(loop)}", at=loop
            )
        else:
            yield failed(
                subject,
                f"{placed(limits[0])} requests {min(numbers(limits[0].value)) // 3600} hours, but the loop of "
                f"{quoted(loop)} saves nothing: after a failure, all training is lost.",
                at=loop,
                also=((limits[0], "a long job"),),
                remedy="Save model, optimizer and step at intervals, and resume from the last checkpoint.",
            )


@rule(
    "TRN024",
    "every-step-profiled",
    severity=Severity.WARNING,
    otherwise="no training loop is profiled",
    passes_with=("saves_while_training",),
)
def every_step_profiled(job: Job) -> Iterator[Verdict]:
    """A profiler records every step of the training.

    What it checks: A profiler of torch or Paddle that is enabled around a training loop has a schedule, or is stopped
    inside the loop.

    Why it matters: Every operator of every step is recorded in host memory: steps take longer, and after some hours the
    process is killed for its memory.

    Example: `with torch.profiler.profile(with_stack=True): ` around the loop over epochs.

    Fix: Profile only a few steps: `schedule=torch.profiler.schedule(wait=1, warmup=1, active=3, repeat=1)` and
    `prof.step()`.

    Known limits: A short loop that exists only for profiling is also reported.
    """
    for subject, profiler in subject_claims(job, "profiles_every_step"):
        if profiler.condition or not runs_program(job):
            yield unknown(subject, f"whether {quoted(profiler)} is enabled depends on the run", at=profiler)
            continue
        yield failed(
            subject,
            f"{joined(profiler.alternatives)} is enabled in every step of the training loop.",
            at=profiler,
            remedy="Give the profiler a schedule of a few steps, or remove it from production runs.",
        )


@rule(
    "TRN025",
    "unfrozen-after-wrap",
    severity=Severity.WARNING,
    otherwise="no frozen parameters are unfrozen",
    each=claims_about("parameters_unfrozen"),
)
def unfrozen_after_wrap(question: SubjectQuestion) -> Verdict | None:
    """Parameters are frozen when their model is wrapped, and trained later.

    What it checks: Parameters that are frozen (`requires_grad = False`, `stop_gradient = True`) when the program wraps
    their model with DistributedDataParallel or Paddle's DataParallel are not unfrozen unless the model is wrapped
    again.

    Why it matters: The wrapper determines only once, when it is created, which parameters' gradients the ranks
    exchange. Parameters unfrozen later are trained on each rank's own data: the replicas silently diverge.

    Example: `freeze(net.backbone)`, `model = DDP(net)`, and `unfreeze(net.backbone)` after five epochs.

    Fix: Wrap the model again after unfreezing, with a new optimizer for its parameters; or wrap it before freezing,
    with `find_unused_parameters=True`.

    Known limits: Parts of a model are compared by their names.
    """
    (switch,) = question.claims
    if not switch.because:
        return None
    wrapped, frozen = switch.because
    part = f"`{switch.value.value}`" if isinstance(switch.value, Known) and switch.value.value else "the model"
    return failed(
        question.subject,
        f"{quoted(switch)} unfreezes the parameters of {part}, but they were frozen ({where(frozen)}) when "
        f"{quoted(wrapped)} ({where(wrapped)}) collected the parameters to exchange: their gradients are not "
        "exchanged.",
        at=switch,
        also=((frozen, "frozen here"), (wrapped, "wrapped here")),
        remedy="Wrap the model again afterwards, and create the optimizer from the new parameters.",
    )


@rule(
    "PGR019",
    "model-of-processes-not-shared",
    severity=Severity.WARNING,
    otherwise="no two processes train the same model",
    passes_with=("saves_while_training",),
    each=claims_about("model_not_shared"),
)
def model_of_processes_not_shared(question: SubjectQuestion) -> Verdict | None:
    """Several processes train one model that is not in shared memory (Hogwild).

    What it checks: A model is in shared memory if it is passed to several `Process`es that step an optimizer over its
    parameters.

    Why it matters: Each forked process trains its own copy, which is gone when the process ends. The model that
    the parent saves is the untrained one.

    Example: `mp.Process(target=train, args=(rank, model))` in a loop, without `model.share_memory()`.

    Fix: `model.share_memory()` before the processes start.

    Known limits: With the start methods spawn and forkserver, torch shares the parameters automatically; scripts that
    name these are not judged.
    """
    (model,) = question.claims
    return failed(
        question.subject,
        f"{quoted(model)} gives each process a copy of {joined(model.alternatives)}: the training of these copies is "
        f"lost.",
        at=model,
        remedy=f"Call {joined(model.alternatives)}.share_memory() before the processes start.",
    )
