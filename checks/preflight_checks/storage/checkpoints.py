"""Checks that checkpoints can be written and fit, and that the checkpoint to resume from fits the number of ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from preflight.model.findings import Evidence, Severity
from preflight.model.job import Claim, Job, Known, Scope
from preflight.model.recording import Facts, Fleet
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, unknown
from preflight_checks.plans import MIB, combine_plans, facts_about, size
from preflight_checks.probes.folders import CheckpointState, FolderState, checkpoint_state, folder_state, write_trial
from preflight_checks.requirements import fold, known_int, nodes_share_machine, scopes
from preflight_checks.storage.paths import for_each_path, is_node_path, unknown_states
from preflight_checks.storage.scratch_folders import (
    CheckpointSize,
    Destination,
    checkpoint_size,
    destinations,
    is_shared,
    plan_destinations,
)

#: With one of these options, DeepSpeed reads a checkpoint of any number of ranks.
_UNIVERSAL = ("--universal-checkpoint", "--universal_checkpoint", "--load_universal")
#: Options that skip the optimizer states, which cannot be repartitioned.
_WITHOUT_STATES = ("--no-load-optim", "--finetune", "--load_module_only")


@dataclass(frozen=True, slots=True)
class _ResumedCheckpoint:
    """A checkpoint to resume from. `optional`: whether the job also saves there, so that it may be missing in the first
    run.
    """

    path: str
    scope: Scope
    claims: tuple[Claim, ...]
    optional: bool


def _resumed_checkpoints(job: Job) -> tuple[_ResumedCheckpoint, ...]:
    found: dict[str, _ResumedCheckpoint] = {}
    for scope in scopes(job):
        saved = {value for claim in job.setting("checkpoint_path", scope) for value in claim.alternatives}
        for claim in job.setting("resume_path", scope):
            for path in claim.alternatives:
                if isinstance(path, str) and is_node_path(path):
                    found.setdefault(path, _ResumedCheckpoint(path, scope, (claim,), path in saved))
    return tuple(found.values())


@check(
    "CKP014",
    "resume-topology-differs",
    plan=for_each_path(checkpoint_state, _resumed_checkpoints),
    severity=Severity.ERROR,
)
def resume_topology(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The checkpoint to resume from is complete, and was written by as many ranks as will read it.

    What it checks: the file names in the newest checkpoint under the path, on every node. ZeRO's optimizer states are
    partitioned for one number of data-parallel ranks, Megatron-LM's mp_rank folders for one tensor and pipeline size;
    both are compared with the sizes of the job. A missing file, an empty file, and a distributed checkpoint without its
    .metadata are errors with any number of ranks.

    Why it matters: the job is placed, reads the model for minutes, and stops with "the checkpoint being loaded used a
    DP world size of 32 but the current world size is 128".

    Example: a checkpoint of 4 nodes with 8 GPUs each, resumed on 3 nodes.

    Fix: resume with the same number of ranks, convert the checkpoint (DeepSpeed's ds_to_universal.py, Megatron's
    tools/checkpoint/convert.py), or save in a format that can be repartitioned.

    Known limits: the contents of the files are not read. A folder that does not exist yet and to which the job also
    saves means a first run.
    """
    checkpoints = _resumed_checkpoints(job)
    if not checkpoints:
        yield not_applicable("resuming", "the job's files name no checkpoint to resume from")
    for item in checkpoints:
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
            yield not_applicable(item.path, "no checkpoint exists yet, so the job starts from scratch")


def _missing_findings(
    item: _ResumedCheckpoint, observed: Mapping[str, CheckpointState], existing: Mapping[str, CheckpointState]
) -> list[Verdict]:
    absent = {node: state for node, state in observed.items() if state.problem}
    if not absent or (item.optional and not existing and {s.problem for s in absent.values()} <= {"missing", "empty"}):
        return []
    node, state = next(iter(absent.items()))
    nowhere = not existing
    verdict = failed(
        f"{item.path}: absent",
        f"no checkpoint exists at {item.path} on {'any node' if nowhere and len(absent) > 1 else fold(absent)}"
        + (f", but on {fold(existing, 4)}" if existing else "")
        + f" ({state.detail})",
        at=Evidence("checkpoint", state.detail or state.problem, "a checkpoint", f"ls -l {state.resolved}", node),
        also=item.claims,
        nodes=tuple(absent),
        remedy=f"Copy or mount the checkpoint on {fold(absent)}, or name the checkpoint to resume from.",
        # Many scripts start from scratch without a checkpoint, but all stop if the newest one is missing.
        certain=not (nowhere and state.problem in ("missing", "empty")),
    )
    return [verdict]


def _broken_findings(item: _ResumedCheckpoint, existing: Mapping[str, CheckpointState]) -> list[Verdict]:
    """Return missing or empty files. On local disks, nodes have only the files of their own ranks."""
    verdicts: list[Verdict] = []
    state = next(iter(existing.values()))
    hollow = {name: node for node, checkpoint in existing.items() for name in checkpoint.hollow}
    if hollow:
        nodes = tuple(dict.fromkeys(hollow.values()))
        verdicts.append(
            _incomplete_finding(item, f"these files are empty: {fold(hollow, 4)}", existing[nodes[0]], nodes)
        )
    for what, ranks in (
        ("optimizer states", _ranks_with_pieces(existing, "zero")),
        ("model parts", _ranks_with_pieces(existing, "model")),
    ):
        holes = sorted(set(range(max(ranks) + 1)) - ranks) if ranks else []
        if holes:
            missing = fold(map(str, holes), 8)
            verdicts.append(
                _incomplete_finding(item, f"the {what} of ranks {missing} are missing", state, tuple(existing))
            )
    if _ranks_with_pieces(existing, "distributed") and not any(checkpoint.index for checkpoint in existing.values()):
        verdicts.append(
            _incomplete_finding(item, "its .metadata, which is written last, is missing", state, tuple(existing))
        )
    return verdicts


def _ranks_with_pieces(existing: Mapping[str, CheckpointState], kind: str) -> set[int]:
    return {rank for state in existing.values() for rank in getattr(state, kind)}


def _incomplete_finding(item: _ResumedCheckpoint, what: str, state: CheckpointState, nodes: Sequence[str]) -> Verdict:
    where = f"{state.resolved}/{state.tag}".rstrip("/")
    return failed(
        f"{item.path}: incomplete",
        f"the checkpoint {where} is incomplete: {what}",
        at=Evidence("checkpoint", what, "every piece", f"ls -l {where}", nodes[0]),
        also=item.claims,
        nodes=tuple(nodes),
        remedy="Resume from an older checkpoint: this one was not written or copied completely.",
    )


def _resize_findings(job: Job, item: _ResumedCheckpoint, existing: Mapping[str, CheckpointState]) -> Iterator[Verdict]:
    """Yield findings for sizes that the checkpoint was partitioned for and that differ from the job's."""
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
    """Return whether DeepSpeed is configured to accept a checkpoint from any number of ranks."""
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
    item: _ResumedCheckpoint,
    existing: Mapping[str, CheckpointState],
    ranks_name: str,
    written: int,
    rank_count: int,
    claims: tuple[Claim, ...],
) -> Verdict:
    node, state = next(iter(existing.items()))
    where = f"{state.resolved}/{state.tag}".rstrip("/")
    return failed(
        f"{item.path}: {ranks_name}",
        f"the checkpoint {where} was written by {written} {ranks_name}, but the job has {rank_count}: its files "
        "cannot be repartitioned",
        at=Evidence(f"pieces by {ranks_name}", str(written), str(rank_count), f"ls {where}", node),
        also=(*item.claims, *claims),
        nodes=tuple(existing),
        remedy=f"Resume with {written} {ranks_name}, or convert the checkpoint first (DeepSpeed's ds_to_universal.py, "
        "Megatron-LM's tools/checkpoint/convert.py).",
    )


#: With less free space, not even the log next to a checkpoint fits.
NO_ROOM = MIB
#: A target of Lustre below this share of free space fails the writes that are striped over it, while df shows room.
TARGET_SHARE, OTHERS_SHARE = 0.02, 0.1
#: A small file takes a healthy server milliseconds; checkpoints are many of them.
SLOW_WRITE_S = 2.0
_NUMBERS = re.compile(r" \([^()]*\)")


@check(
    "CKP011",
    "checkpoint-folder-unusable",
    plan=combine_plans(plan_destinations, for_each_path(write_trial, destinations, consent="write", required=False)),
    severity=Severity.ERROR,
)
def checkpoint_folder_unusable(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The folder for checkpoints exists or can be created, is writable for the job's user, and is not full.

    What it checks: permission, read-only mounts, free bytes, inodes and quotas of the checkpoint folder, or of its
    nearest existing ancestor, as ranks see it. With `--allow write`, a file of 4 KiB is written there and removed.

    Why it matters: the first checkpoint is written hours into the run; if that fails, all work is lost.

    Example: `--save /scratch/run7`, where /scratch was remounted read-only on node2 after a disk error.

    Fix: choose another folder, give the job's user permission, mount it writable, or free space.

    Known limits: without `--allow write`, a file server that refuses what the kernel allows (squashed root, a hidden
    quota) is not noticed. On nodes other than the first, the finding is a warning unless every rank certainly writes.
    """
    wanted = destinations(job)
    if not wanted:
        yield not_applicable("checkpoint folder", "the job's files name no checkpoint folder")
    for item in wanted:
        observed, missing = facts_about(facts, folder_state, path=item.path)
        yield from unknown_states(item.path, missing, required=True)
        faults: dict[str, list[str]] = {}
        tried, slow = _write_trials(facts, item.path)
        for node, state in observed.items():
            fault = _folder_fault(state) or tried.get(node, "")
            if fault:
                # The space left differs between nodes, but the fault is the same.
                faults.setdefault(_NUMBERS.sub("", fault), []).append(node)
        for kind, nodes in faults.items():
            state = observed[nodes[0]]
            fault = _folder_fault(state) or tried[nodes[0]]
            certain = bool(item.sharded) or fleet.master is None or fleet.master.name in nodes
            yield failed(
                f"{item.path}: {kind}",
                f"checkpoints cannot be written to {item.path} on {fold(nodes)}: {fault}",
                at=Evidence("checkpoint folder", fault, "a writable folder", f"df -h {state.nearest}", nodes[0]),
                also=(*item.claims, *((claim, "every rank writes") for claim in item.sharded)),
                nodes=tuple(nodes),
                remedy=f"Give the job's user a folder with free space on {fold(nodes)}, or use another folder.",
                certain=certain,
            )
        if slow:
            node, took = max(slow.items(), key=lambda found: found[1])
            yield failed(
                f"{item.path}: slow",
                f"writing 4 KiB to {item.path} took up to {took:.1f} s on {fold(slow)}",
                at=Evidence("writing a small file", f"{took:.1f} s", f"below {SLOW_WRITE_S:g} s", "", node),
                also=item.claims,
                nodes=tuple(slow),
                remedy="Check how busy the file server is; a checkpoint consists of many such files.",
                certain=False,
            )
        if observed and not faults and not slow:
            yield passed(f"{item.path} on {len(observed)} nodes")


def _write_trials(facts: Facts, path: str) -> tuple[dict[str, str], dict[str, float]]:
    """Return the write errors and the slow writes, by node, of the nodes where writing was tried."""
    found: dict[str, str] = {}
    slow: dict[str, float] = {}
    for node, value in facts_about(facts, write_trial, path=path)[0].items():
        if value.problem:
            found[node] = f"a small file cannot be written to {value.folder} ({value.problem})"
        elif value.took_s > SLOW_WRITE_S:
            slow[node] = value.took_s
    return found, slow


def _folder_fault(state: FolderState) -> str:
    """Return a description of why writing to the folder fails; empty if no reason is known."""
    if state.problem:
        return state.detail or state.problem
    if state.read_only:
        return f"{state.mount_point or state.nearest} is mounted read-only"
    if not state.writable:
        what = "may not write to" if state.exists else "may not create the folder in"
        return f"the job's user {what} {state.nearest}"
    if state.free_bytes is not None and state.free_bytes < NO_ROOM and state.total_bytes:
        return f"{state.mount_point} is full ({size(state.free_bytes)} of {size(state.total_bytes)} free)"
    if state.inodes_free == 0 and state.inodes_total:
        return f"{state.mount_point} has no free inodes (of {state.inodes_total})"
    for quota in state.quotas:
        if quota.limit_bytes is not None and quota.used_bytes >= quota.limit_bytes:
            return f"the {quota.whose}'s quota of {size(quota.limit_bytes)} is used up"
        if quota.limit_files is not None and (quota.used_files or 0) >= quota.limit_files:
            return f"the {quota.whose}'s quota of {quota.limit_files} files is used up"
    return ""


def _free_bytes(state: FolderState) -> float | None:
    """Return the number of bytes that can still be written, limited by the disk and every quota."""
    if state.free_bytes is None:
        return None
    remaining = [quota.limit_bytes - quota.used_bytes for quota in state.quotas if quota.limit_bytes is not None]
    return max(0, min([state.free_bytes, *remaining]))


@check("CKP012", "checkpoint-does-not-fit", plan=plan_destinations, severity=Severity.ERROR)
def checkpoint_does_not_fit(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """There is space for the first checkpoint, and for as many as the job keeps.

    What it checks: the least size of a checkpoint (2 bytes of each parameter, and 12 more with Adam's states in mixed
    precision, by the model's shape or name) compared with free space and quota of its folder. Space for less than one
    checkpoint is an error; less than for the kept ones (`--save_total_limit` plus one, or one at every
    `--save-interval`) is a warning, and so is a full Lustre target next to others with space.

    Why it matters: the disk becomes full in the middle of writing, and the job ends and leaves half a checkpoint.

    Example: 98 GB for each checkpoint of seven billion parameters, and 80 GB free.

    Fix: choose another folder, keep fewer checkpoints, remove old ones, or save only weights (`--no-save-optim`).

    Known limits: this is a lower bound: a run that passes may still fill the disk. Judged only if the files give the
    size of the model; adapters are not counted. Local disks are compared with the whole checkpoint on the first node,
    or with each node's share if every rank writes its part.
    """
    applies = False
    for item in destinations(job):
        observed, missing = facts_about(facts, folder_state, path=item.path)
        lop = _unbalanced_targets(observed)
        if lop:
            applies = True
            yield _full_target_finding(item, lop, observed)
        needed = checkpoint_size(job, item.scope)
        if needed is None:
            continue
        applies = True
        yield from unknown_states(item.path, missing)
        usable = {node: state for node, state in observed.items() if not _folder_fault(state)}
        short = list(_too_small_findings(item, needed, usable, fleet))
        yield from short
        if usable and not short and not lop:
            yield passed(f"free space in {item.path} on {len(usable)} nodes")
        elif observed and not usable:
            yield unknown(f"room in {item.path}", "the folder is not writable (see CKP011)")
    if not applies:
        yield not_applicable("space for checkpoints", "the job's files give no checkpoint folder or no model size")


def _too_small_findings(
    item: Destination, needed: CheckpointSize, observed: Mapping[str, FolderState], fleet: Fleet
) -> Iterator[Verdict]:
    first: dict[str, float] = {}
    later: dict[str, float] = {}
    for node, state in observed.items():
        room = _free_bytes(state)
        share = _share(item, state, node, fleet)
        if room is None or not share:
            continue
        if room < needed.each_bytes * share:
            first[node] = room
        elif needed.kept_count is not None and room < needed.each_bytes * share * needed.kept_count:
            later[node] = room
    what = "weights and optimizer states" if needed.states else "weights"
    for group, count in ((first, 1), (later, needed.kept_count or 1)):
        if not group:
            continue
        node = min(group, key=lambda name: group[name])
        wanted = needed.each_bytes * count * _share(item, observed[node], node, fleet)
        each = f"{size(needed.each_bytes)} each ({what})"
        yield failed(
            f"{item.path}: {'first checkpoint' if count == 1 and group is first else 'kept checkpoints'}",
            f"{item.path} has only {size(group[node])} free on {fold(group)}, but "
            + ("the first checkpoint needs" if group is first else f"the {count} checkpoints that are kept need")
            + f" at least {size(wanted)}"
            + (f": {each}" if group is later else f" ({what})"),
            at=Evidence("room", size(group[node]), f"at least {size(wanted)}", f"df -h {observed[node].nearest}", node),
            also=(*item.claims, *needed.claims),
            nodes=tuple(group),
            remedy=f"Free space in {observed[node].nearest}, use another folder, or keep fewer checkpoints.",
            certain=group is first,
        )


def _share(item: Destination, state: FolderState, node: str, fleet: Fleet) -> float:
    """Return the part of a checkpoint that certainly goes to this node's file system."""
    if is_shared(state) or len(fleet.nodes) < 2:
        return 1.0
    if item.sharded:
        return 1.0 / len(fleet.nodes)
    return 1.0 if fleet.master is not None and fleet.master.name == node else 0.0


def _unbalanced_targets(observed: Mapping[str, FolderState]) -> dict[str, str]:
    """Return, by node, the full targets of a file system whose other targets have space."""
    found: dict[str, str] = {}
    for node, state in observed.items():
        shares = {target.name: target.free_bytes / target.total_bytes for target in state.targets if target.total_bytes}
        full = [name for name, share in shares.items() if share < TARGET_SHARE]
        if full and max(shares.values()) > OTHERS_SHARE:
            found[node] = fold(full, 4)
    return found


def _full_target_finding(item: Destination, full: Mapping[str, str], observed: Mapping[str, FolderState]) -> Verdict:
    node, names = next(iter(full.items()))
    return failed(
        f"{item.path}: targets",
        f"{names} of {observed[node].mount_point} is full, although other targets have space: files that are striped "
        "over it fail",
        at=Evidence("storage targets", f"{names} full", "free space on every target", f"lfs df -h {item.path}", node),
        also=item.claims,
        nodes=tuple(full),
        remedy=f"Set a different stripe for the folder (`lfs setstripe -o ... {item.path}`), or ask an administrator "
        "to rebalance the target.",
        certain=False,
    )


@check("CKP013", "checkpoint-folder-not-shared", plan=plan_destinations, severity=Severity.ERROR)
def checkpoint_folder_not_shared(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """All nodes write their parts of a checkpoint to the same file system.

    What it checks: the folder's file system on each node. A file server on most nodes and a local disk on some is an
    error, a different export a warning. Local disks everywhere are a warning if every rank writes its own part (ZeRO, a
    distributed optimizer, sharded FSDP).

    Why it matters: the files are spread over the disks of all nodes, so resuming on other nodes finds only one node's
    part.

    Example: /scratch is Lustre, but on node3, where the mount failed at boot, it is the local disk.

    Fix: mount it, or name a folder that all nodes share.

    Known limits: the type of a file system determines whether it counts as shared. Frameworks configured for node-local
    folders (DeepSpeed's use_node_local_storage) can resume from them.
    """
    wanted = destinations(job)
    if not wanted or len(fleet.nodes) < 2 or nodes_share_machine(fleet):
        yield not_applicable(
            "checkpoint folder", "the job's files name no checkpoint folder, or there is only one machine"
        )
        return
    for item in wanted:
        observed, missing = facts_about(facts, folder_state, path=item.path)
        yield from unknown_states(item.path, missing)
        observed = {node: state for node, state in observed.items() if not state.problem}
        local = {node: state for node, state in observed.items() if not is_shared(state)}
        if len(observed) < 2:
            continue
        if not local or (len(local) == len(observed) and not item.sharded):
            yield passed(f"{item.path} on {len(observed)} nodes")
            continue
        node, state = next(iter(local.items()))
        some = len(local) < len(observed)
        served = next((f"{s.file_system} ({s.source})" for s in observed.values() if is_shared(s)), "")
        yield failed(
            f"{item.path}: local",
            f"{item.path} is on a local disk ({state.file_system} at {state.mount_point}) on {fold(local)}"
            + (f", and on {served} on the other nodes: a mount may be missing" if some else ", but every rank writes"),
            at=Evidence(
                "checkpoint folder", state.file_system, served or "a shared one", f"findmnt -T {state.nearest}", node
            ),
            also=(*item.claims, *((claim, "every rank writes its part") for claim in item.sharded)),
            nodes=tuple(local),
            remedy=f"Mount it on {fold(local)}." if some else "Use a folder that all nodes share.",
            certain=some,
        )
