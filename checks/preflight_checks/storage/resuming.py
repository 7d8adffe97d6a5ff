"""Whether the checkpoint that the job goes on from is there on every node, whole, and fits the new number of ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from preflight.job import Claim, Job, Known, Scope
from preflight.judgement import Verdict, check, failed, not_applicable, passed, unknown
from preflight.lazy.dataclasses import dataclass
from preflight.outcome import Confidence, Evidence, Severity
from preflight.recording import Facts, Fleet, Observed
from preflight.request import Request, probe_name
from preflight_checks.demands import deciding, fold, known_int, scopes
from preflight_checks.probes.checkpoints import CheckpointState, checkpoint_state
from preflight_checks.storage.paths import on_a_node

#: With one of these DeepSpeed reads a checkpoint of any number of ranks.
_UNIVERSAL = ("--universal-checkpoint", "--universal_checkpoint", "--load_universal")
#: What leaves the optimizer's states alone, which are what cannot be divided anew.
_WITHOUT_STATES = ("--no-load-optim", "--finetune", "--load_module_only")


@dataclass(frozen=True, slots=True)
class _Resumed:
    """A checkpoint to go on from; `begins`: nothing there means a first start (it is where the job saves, too)."""

    path: str
    scope: Scope
    claims: tuple[Claim, ...]
    begins: bool


def _resumed(job: Job) -> tuple[_Resumed, ...]:
    found: dict[str, _Resumed] = {}
    for scope in scopes(job):
        saved = {value for claim in job.setting("checkpoint_path", scope) for value in claim.alternatives}
        for claim in job.setting("resume_path", scope):
            for path in claim.alternatives:
                if isinstance(path, str) and on_a_node(path):
                    found.setdefault(path, _Resumed(path, scope, (claim,), path in saved))
    return tuple(found.values())


def _plan(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    for item in _resumed(job):
        for node in fleet.reached:
            params = {"path": item.path}
            yield Request(
                probe_name(checkpoint_state), node.name, params, context=True, because=item.claims, required=True
            )


@check(
    "CKP014",
    "resume-topology-differs",
    plan=_plan,
    probes=(checkpoint_state,),
    cost="lists the names in the newest checkpoint; no file of it is opened",
    severity=Severity.ERROR,
    evidence=("deepspeedai/DeepSpeed#2898", "deepspeedai/DeepSpeed#3810", "deepspeedai/DeepSpeed#5405"),
)
def resume_topology(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The checkpoint to resume from is whole, and was written by as many ranks as will read it.

    What it checks: the names in the newest checkpoint below the path, on every node. ZeRO's optimizer states are cut
    for one number of data-parallel ranks, Megatron-LM's mp_rank folders for one tensor and pipeline size; both are
    held against the sizes of the job. A piece that lacks between others, one of no size, and a distributed checkpoint
    without its .metadata are errors with any number of ranks.

    Why it matters: the job is placed, reads the model for minutes, and ends with "the checkpoint being loaded used a DP
    world size of 32 but the current world size is 128".

    Example: a checkpoint of 4 nodes with 8 GPUs each, resumed on 3 nodes.

    Fix: resume with the same number of ranks, convert the checkpoint (DeepSpeed's ds_to_universal.py, Megatron's
    tools/checkpoint/convert.py), or save in a format that can be divided anew.

    Known limits: what stands inside of the files is not read. A folder that does not exist yet and is where the job
    saves, too, is a first start.

    Evidence: deepspeedai/DeepSpeed#2898, deepspeedai/DeepSpeed#3810, deepspeedai/DeepSpeed#5405.
    """
    wanted = _resumed(job)
    if not wanted:
        yield not_applicable("resuming", "the files name no checkpoint to go on from")
    for item in wanted:
        have: dict[str, CheckpointState] = {}
        for seen in facts.each(checkpoint_state):
            if seen.params.get("path") != item.path:
                continue
            if isinstance(seen.fact, Observed):
                have[seen.node] = seen.fact.value
            else:
                entered = seen.fact.kind != "context"
                yield unknown(f"{item.path} on {seen.node}", seen.fact.reason, required=entered)
        there = {node: state for node, state in have.items() if not state.problem}
        faults = [*_absent(item, have, there), *(_broken(item, there) if there else ())]
        faults.extend(_resized(job, item, there) if there and not faults else ())
        yield from faults
        if there and not faults:
            yield passed(f"{item.path} on {len(there)} nodes")
        elif have and not there and not faults:
            yield not_applicable(item.path, "there is no checkpoint yet: the job begins anew")


def _absent(item: _Resumed, have: Mapping[str, CheckpointState], there: Mapping[str, CheckpointState]) -> list[Verdict]:
    absent = {node: state for node, state in have.items() if state.problem}
    if not absent or (item.begins and not there and {s.problem for s in absent.values()} <= {"missing", "empty"}):
        return []
    node, state = next(iter(absent.items()))
    nowhere = not there
    verdict = failed(
        f"{item.path}: absent",
        f"there is no checkpoint at {item.path} on {'any node' if nowhere and len(absent) > 1 else fold(absent)}"
        + (f", but on {fold(there, 4)}" if there else "")
        + f" ({state.detail})",
        at=Evidence("checkpoint", state.detail or state.problem, "a checkpoint", f"ls -l {state.resolved}", node),
        also=item.claims,
        nodes=tuple(absent),
        remedy=f"Copy or mount the checkpoint on {fold(absent)}, or name the one to go on from.",
        # Many scripts begin anew where there is none; a newest one that is not there they all stop at.
        severity=Severity.WARNING if nowhere and state.problem in ("missing", "empty") else None,
        confidence=Confidence.MEDIUM if nowhere and state.problem in ("missing", "empty") else None,
    )
    return [verdict]


def _broken(item: _Resumed, there: Mapping[str, CheckpointState]) -> list[Verdict]:
    """Pieces that lack or hold nothing. On disks of their own the nodes have the pieces of their own ranks."""
    found: list[Verdict] = []
    state = next(iter(there.values()))
    hollow = {name: node for node, seen in there.items() for name in seen.hollow}
    if hollow:
        nodes = tuple(dict.fromkeys(hollow.values()))
        found.append(_incomplete(item, f"{fold(hollow, 4)} of it hold nothing", there[nodes[0]], nodes))
    for what, ranks in (("optimizer states", _all(there, "zero")), ("model parts", _all(there, "model"))):
        holes = sorted(set(range(max(ranks) + 1)) - ranks) if ranks else []
        if holes:
            lacking = fold(map(str, holes), 8)
            found.append(_incomplete(item, f"the {what} of ranks {lacking} lack", state, tuple(there)))
    if _all(there, "distributed") and not any(seen.index for seen in there.values()):
        found.append(_incomplete(item, "its .metadata lacks, which is written last", state, tuple(there)))
    return found


def _all(there: Mapping[str, CheckpointState], kind: str) -> set[int]:
    return {rank for state in there.values() for rank in getattr(state, kind)}


def _incomplete(item: _Resumed, what: str, state: CheckpointState, nodes: Sequence[str]) -> Verdict:
    where = f"{state.resolved}/{state.tag}".rstrip("/")
    return failed(
        f"{item.path}: incomplete",
        f"the checkpoint {where} is not whole: {what}",
        at=Evidence("checkpoint", what, "every piece", f"ls -l {where}", nodes[0]),
        also=item.claims,
        nodes=tuple(nodes),
        remedy="Resume from an older checkpoint: this one was not written to its end, or not copied whole.",
    )


def _resized(job: Job, item: _Resumed, there: Mapping[str, CheckpointState]) -> Iterator[Verdict]:
    """Sizes that the checkpoint was cut for and that are not those of the job."""
    launch = next((launch for launch in job.launches if launch.scope == item.scope), None)
    words = {word.partition("=")[0] for word in launch.arguments if word is not None} if launch is not None else set()
    if words & {*_UNIVERSAL, *_WITHOUT_STATES} or any(state.universal for state in there.values()):
        return
    parts = 1
    # Ranks that share a sequence divide the optimizer's states among them, too.
    for quantity in ("tensor_parallel_size", "pipeline_parallel_size"):
        claims = deciding(job, quantity, item.scope)
        size = known_int(job, quantity, item.scope)
        if claims and size is None:
            yield unknown(item.path, f"what {quantity} will be is not known", at=claims[0])
            return
        parts *= size or 1
    for kind, quantity, what in (
        ("tensor", "tensor_parallel_size", "tensor-parallel ranks"),
        ("stages", "pipeline_parallel_size", "pipeline stages"),
    ):
        written, now = len(_all(there, kind)), known_int(job, quantity, item.scope) or 1
        if written and written != now and not _all(there, "distributed"):
            yield _other_size(item, there, what, written, now, deciding(job, quantity, item.scope))
            return
    zero = _all(there, "zero")
    world = known_int(job, "world_size", item.scope)
    if not zero or _elastic(job, item.scope):
        return
    if world is None:
        yield unknown(item.path, "how many ranks will read the optimizer states is not known")
        return
    if len(zero) != world // parts:
        yield _other_size(
            item, there, "data-parallel ranks", len(zero), world // parts, deciding(job, "world_size", item.scope)
        )


def _elastic(job: Job, scope: Scope) -> bool:
    """Whether DeepSpeed is told to take a checkpoint of any number of ranks."""
    told = ("zero_optimization.elastic_checkpoint", "checkpoint.load_universal", "elastic_checkpoint", "load_universal")
    return any(
        isinstance(claim.value, Known) and str(claim.value.value) in told for claim in job.about("deepspeed_key", scope)
    )


def _other_size(
    item: _Resumed,
    there: Mapping[str, CheckpointState],
    what: str,
    written: int,
    now: int,
    claims: tuple[Claim, ...],
) -> Verdict:
    node, state = next(iter(there.items()))
    where = f"{state.resolved}/{state.tag}".rstrip("/")
    return failed(
        f"{item.path}: {what}",
        f"the checkpoint {where} was written by {written} {what}, and the job has {now}: its pieces cannot be divided "
        "anew",
        at=Evidence(f"pieces by {what}", str(written), str(now), f"ls {where}", node),
        also=(*item.claims, *claims),
        nodes=tuple(there),
        remedy=f"Resume with {written} {what}, or convert the checkpoint first (DeepSpeed's ds_to_universal.py, "
        "Megatron-LM's tools/checkpoint/convert.py).",
    )
