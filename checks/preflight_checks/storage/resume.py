"""Checks that the checkpoint to resume from exists on every node, is complete, and fits the number of ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from preflight.model.findings import Evidence, Severity
from preflight.model.job import Claim, Job, Known, Scope
from preflight.model.recording import Facts, Fleet
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, unknown
from preflight_checks.plans import facts_about
from preflight_checks.probes.checkpoints import CheckpointState, checkpoint_state
from preflight_checks.requirements import fold, known_int, scopes
from preflight_checks.storage.paths import for_each_path, on_a_node

#: With one of these options, DeepSpeed reads a checkpoint of any number of ranks.
_UNIVERSAL = ("--universal-checkpoint", "--universal_checkpoint", "--load_universal")
#: Options that skip the optimizer states, which cannot be repartitioned.
_WITHOUT_STATES = ("--no-load-optim", "--finetune", "--load_module_only")


@dataclass(frozen=True, slots=True)
class _Resumed:
    """A checkpoint to resume from; `optional`: a missing one means a first start (the job also saves there)."""

    path: str
    scope: Scope
    claims: tuple[Claim, ...]
    optional: bool


def _resumed(job: Job) -> tuple[_Resumed, ...]:
    found: dict[str, _Resumed] = {}
    for scope in scopes(job):
        saved = {value for claim in job.setting("checkpoint_path", scope) for value in claim.alternatives}
        for claim in job.setting("resume_path", scope):
            for path in claim.alternatives:
                if isinstance(path, str) and on_a_node(path):
                    found.setdefault(path, _Resumed(path, scope, (claim,), path in saved))
    return tuple(found.values())


@check(
    "CKP014",
    "resume-topology-differs",
    plan=for_each_path(checkpoint_state, _resumed),
    cost="lists the names in the newest checkpoint; no file of it is opened",
    severity=Severity.ERROR,
    evidence=("deepspeedai/DeepSpeed#2898", "deepspeedai/DeepSpeed#3810", "deepspeedai/DeepSpeed#5405"),
)
def resume_topology(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The checkpoint to resume from is complete, and was written by as many ranks as will read it.

    What it checks: the names in the newest checkpoint below the path, on every node. ZeRO's optimizer states are
    partitioned for one number of data-parallel ranks, Megatron-LM's mp_rank folders for one tensor and pipeline size;
    both are compared with the sizes of the job. A missing piece, an empty piece, and a distributed checkpoint without
    its .metadata are errors with any number of ranks.

    Why it matters: the job is placed, reads the model for minutes, and ends with "the checkpoint being loaded used a DP
    world size of 32 but the current world size is 128".

    Example: a checkpoint of 4 nodes with 8 GPUs each, resumed on 3 nodes.

    Fix: resume with the same number of ranks, convert the checkpoint (DeepSpeed's ds_to_universal.py, Megatron's
    tools/checkpoint/convert.py), or save in a format that can be repartitioned.

    Known limits: the contents of the files are not read. A folder that does not exist yet and is where the job
    saves, too, is a first start.
    """
    wanted = _resumed(job)
    if not wanted:
        yield not_applicable("resuming", "the files name no checkpoint to resume from")
    for item in wanted:
        observed, missing = facts_about(facts, checkpoint_state, path=item.path)
        for node, why in missing.items():
            yield unknown(f"{item.path} on {node}", why.reason, nodes=(node,), required=why.kind != "context")
        existing = {node: state for node, state in observed.items() if not state.problem}
        faults = [*_missing_findings(item, observed, existing), *(_broken_findings(item, existing) if existing else ())]
        faults.extend(_resize_findings(job, item, existing) if existing and not faults else ())
        yield from faults
        if existing and not faults:
            yield passed(f"{item.path} on {len(existing)} nodes")
        elif observed and not existing and not faults:
            yield not_applicable(item.path, "there is no checkpoint yet: the job starts from scratch")


def _missing_findings(
    item: _Resumed, observed: Mapping[str, CheckpointState], existing: Mapping[str, CheckpointState]
) -> list[Verdict]:
    absent = {node: state for node, state in observed.items() if state.problem}
    if not absent or (item.optional and not existing and {s.problem for s in absent.values()} <= {"missing", "empty"}):
        return []
    node, state = next(iter(absent.items()))
    nowhere = not existing
    verdict = failed(
        f"{item.path}: absent",
        f"there is no checkpoint at {item.path} on {'any node' if nowhere and len(absent) > 1 else fold(absent)}"
        + (f", but on {fold(existing, 4)}" if existing else "")
        + f" ({state.detail})",
        at=Evidence("checkpoint", state.detail or state.problem, "a checkpoint", f"ls -l {state.resolved}", node),
        also=item.claims,
        nodes=tuple(absent),
        remedy=f"Copy or mount the checkpoint on {fold(absent)}, or name the one to resume from.",
        # Many scripts start from scratch without a checkpoint, but all stop if the newest one is missing.
        certain=not (nowhere and state.problem in ("missing", "empty")),
    )
    return [verdict]


def _broken_findings(item: _Resumed, existing: Mapping[str, CheckpointState]) -> list[Verdict]:
    """Missing or empty pieces. On local disks, nodes have only the pieces of their own ranks."""
    found: list[Verdict] = []
    state = next(iter(existing.values()))
    hollow = {name: node for node, seen in existing.items() for name in seen.hollow}
    if hollow:
        nodes = tuple(dict.fromkeys(hollow.values()))
        found.append(_incomplete(item, f"these pieces are empty: {fold(hollow, 4)}", existing[nodes[0]], nodes))
    for what, ranks in (
        ("optimizer states", _ranks_with_pieces(existing, "zero")),
        ("model parts", _ranks_with_pieces(existing, "model")),
    ):
        holes = sorted(set(range(max(ranks) + 1)) - ranks) if ranks else []
        if holes:
            missing = fold(map(str, holes), 8)
            found.append(_incomplete(item, f"the {what} of ranks {missing} are missing", state, tuple(existing)))
    if _ranks_with_pieces(existing, "distributed") and not any(seen.index for seen in existing.values()):
        found.append(_incomplete(item, "its .metadata is missing, which is written last", state, tuple(existing)))
    return found


def _ranks_with_pieces(existing: Mapping[str, CheckpointState], kind: str) -> set[int]:
    return {rank for state in existing.values() for rank in getattr(state, kind)}


def _incomplete(item: _Resumed, what: str, state: CheckpointState, nodes: Sequence[str]) -> Verdict:
    where = f"{state.resolved}/{state.tag}".rstrip("/")
    return failed(
        f"{item.path}: incomplete",
        f"the checkpoint {where} is incomplete: {what}",
        at=Evidence("checkpoint", what, "every piece", f"ls -l {where}", nodes[0]),
        also=item.claims,
        nodes=tuple(nodes),
        remedy="Resume from an older checkpoint: this one was not written or copied completely.",
    )


def _resize_findings(job: Job, item: _Resumed, existing: Mapping[str, CheckpointState]) -> Iterator[Verdict]:
    """Sizes that the checkpoint was partitioned for and that differ from the job's."""
    launch = next((launch for launch in job.launches if launch.scope == item.scope), None)
    words = {word.partition("=")[0] for word in launch.arguments if word is not None} if launch is not None else set()
    if words & {*_UNIVERSAL, *_WITHOUT_STATES} or any(state.universal for state in existing.values()):
        return
    parts = 1
    # Sequence-parallel ranks also partition the optimizer states.
    for quantity in ("tensor_parallel_size", "pipeline_parallel_size"):
        claims = job.value_claims(quantity, item.scope)
        size = known_int(job, quantity, item.scope)
        if claims and size is None:
            yield unknown(item.path, f"the value of {quantity} is unknown", at=claims[0])
            return
        parts *= size or 1
    for kind, quantity, what in (
        ("tensor", "tensor_parallel_size", "tensor-parallel ranks"),
        ("stages", "pipeline_parallel_size", "pipeline stages"),
    ):
        written, now = len(_ranks_with_pieces(existing, kind)), known_int(job, quantity, item.scope) or 1
        if written and written != now and not _ranks_with_pieces(existing, "distributed"):
            yield _resize_finding(item, existing, what, written, now, job.value_claims(quantity, item.scope))
            return
    zero = _ranks_with_pieces(existing, "zero")
    world = known_int(job, "world_size", item.scope)
    if not zero or _accepts_any_ranks(job, item.scope):
        return
    if world is None:
        yield unknown(item.path, "the number of ranks that will read the optimizer states is unknown")
        return
    if len(zero) != world // parts:
        yield _resize_finding(
            item, existing, "data-parallel ranks", len(zero), world // parts, job.value_claims("world_size", item.scope)
        )


def _accepts_any_ranks(job: Job, scope: Scope) -> bool:
    """Whether DeepSpeed is configured to accept a checkpoint of any number of ranks."""
    settings = (
        "zero_optimization.elastic_checkpoint",
        "checkpoint.load_universal",
        "elastic_checkpoint",
        "load_universal",
    )
    return any(
        isinstance(claim.value, Known) and str(claim.value.value) in settings
        for claim in job.about("deepspeed_key", scope)
    )


def _resize_finding(
    item: _Resumed,
    existing: Mapping[str, CheckpointState],
    ranks_name: str,
    written: int,
    now: int,
    claims: tuple[Claim, ...],
) -> Verdict:
    node, state = next(iter(existing.items()))
    where = f"{state.resolved}/{state.tag}".rstrip("/")
    return failed(
        f"{item.path}: {ranks_name}",
        f"the checkpoint {where} was written by {written} {ranks_name}, and the job has {now}: its pieces cannot be "
        "repartitioned",
        at=Evidence(f"pieces by {ranks_name}", str(written), str(now), f"ls {where}", node),
        also=(*item.claims, *claims),
        nodes=tuple(existing),
        remedy=f"Resume with {written} {ranks_name}, or convert the checkpoint first (DeepSpeed's ds_to_universal.py, "
        "Megatron-LM's tools/checkpoint/convert.py).",
    )
