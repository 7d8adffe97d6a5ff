"""Whether checkpoints can be written where the job wants them: allowed, with room enough, and seen by all nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from preflight.job import Job
from preflight.judgement import Verdict, check, failed, not_applicable, passed, unknown
from preflight.lazy.patterns import lazy_pattern
from preflight.outcome import Confidence, Evidence, Severity
from preflight.recording import Facts, Fleet, Observed, Unavailable
from preflight.request import Request, probe_name
from preflight_checks.demands import fold, stand_ins
from preflight_checks.per_node import MIB, size
from preflight_checks.probes.folders import FolderState, folder_state, write_trial
from preflight_checks.storage.destinations import (
    CheckpointSize,
    Destination,
    checkpoint_size,
    destinations,
    folders_of,
    is_shared,
    plan_destinations,
)

#: Under this not even the log beside a checkpoint fits.
NO_ROOM = MIB
#: A target of Lustre below this share of free space fails the writes that are striped over it, while df shows room.
TARGET_SHARE, OTHERS_SHARE = 0.02, 0.1
#: A small file takes a healthy server milliseconds; checkpoints are many of them.
SLOW_WRITE_S = 2.0
_NUMBERS = lazy_pattern(r" \([^()]*\)")


def _plan_usable(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    yield from plan_destinations(job, fleet, facts)
    for item in destinations(job):
        for node in fleet.reached:
            params = {"path": item.path}
            yield Request(
                probe_name(write_trial), node.name, params, context=True, consent="write", because=item.claims
            )


@check(
    "CKP011",
    "checkpoint-folder-unusable",
    plan=_plan_usable,
    probes=(folder_state, write_trial),
    cost="looks at the folder, its mount and its room; with --allow write also writes, syncs and removes 4 KiB",
    severity=Severity.ERROR,
    evidence=("mlfoundations/open_lm#154", "bghira/SimpleTuner#2353", "open-mmlab/mmdetection#12069"),
)
def checkpoint_folder_unusable(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The folder for checkpoints is there or can be made, takes files from the job's user, and is not full.

    What it checks: permission, read-only mounts, free bytes, inodes and quotas of the folder that checkpoints go to, or
    of the nearest folder above it, as ranks see it. With `--allow write` a file of 4 KiB is written there and removed.

    Why it matters: the first checkpoint is written hours into the run, and that is when the job ends, with all its
    work.

    Example: `--save /scratch/run7`, where /scratch was remounted read-only on node2 after an error of the disk.

    Fix: another folder, permission for the job's user, a mount that takes writes, or room.

    Known limits: without `--allow write` a server that refuses what the kernel allows (squashed root, a quota it keeps
    to itself) is not noticed. On nodes other than the first it is a warning unless every rank is known to write.

    Evidence: mlfoundations/open_lm#154, bghira/SimpleTuner#2353, open-mmlab/mmdetection#12069.
    """
    wanted = destinations(job)
    if not wanted:
        yield not_applicable("checkpoint folder", "the files name no folder for checkpoints")
    for item in wanted:
        have, missing = folders_of(facts, item.path)
        yield from _unseen(item, missing, required=True)
        faults: dict[str, list[str]] = {}
        tried, slow = _tried(facts, item.path)
        for node, state in have.items():
            fault = _fault(state) or tried.get(node, "")
            if fault:
                # How much is left differs from node to node, and is the same fault.
                faults.setdefault(_NUMBERS.sub("", fault), []).append(node)
        for kind, nodes in faults.items():
            state = have[nodes[0]]
            fault = _fault(state) or tried[nodes[0]]
            certain = bool(item.sharded) or fleet.master is None or fleet.master.name in nodes
            yield failed(
                f"{item.path}: {kind}",
                f"checkpoints cannot be written to {item.path} on {fold(nodes)}: {fault}",
                at=Evidence(
                    "checkpoint folder", fault, "a folder that takes files", f"df -h {state.nearest}", nodes[0]
                ),
                also=(*item.claims, *((claim, "every rank writes") for claim in item.sharded)),
                nodes=tuple(nodes),
                remedy=f"Give the job's user a folder with room on {fold(nodes)}, or name another one.",
                severity=None if certain else Severity.WARNING,
                confidence=None if certain else Confidence.MEDIUM,
            )
        if slow:
            node, took = max(slow.items(), key=lambda found: found[1])
            yield failed(
                f"{item.path}: slow",
                f"writing 4 KiB into {item.path} took up to {took:.1f} s on {fold(slow)}",
                at=Evidence("writing a small file", f"{took:.1f} s", f"below {SLOW_WRITE_S:g} s", "", node),
                also=item.claims,
                nodes=tuple(slow),
                remedy="See how busy its server is; a checkpoint is many such files.",
                severity=Severity.WARNING,
                confidence=Confidence.MEDIUM,
            )
        if have and not faults and not slow:
            yield passed(f"{item.path} on {len(have)} nodes")


def _unseen(item: Destination, missing: Mapping[str, Unavailable], *, required: bool = False) -> Iterator[Verdict]:
    for reason in dict.fromkeys(why.reason for why in missing.values()):
        nodes = [node for node, why in missing.items() if why.reason == reason]
        entered = all(missing[node].kind != "context" for node in nodes)
        yield unknown(f"{item.path} on {fold(nodes)}", reason, required=required and entered)


def _tried(facts: Facts, path: str) -> tuple[dict[str, str], dict[str, float]]:
    """What was wrong with writing there, and how long it took where it was slow, on the nodes where it was tried."""
    found: dict[str, str] = {}
    slow: dict[str, float] = {}
    for seen in facts.each(write_trial):
        if seen.params.get("path") != path or not isinstance(seen.fact, Observed):
            continue
        value = seen.fact.value
        if value.problem:
            found[seen.node] = f"a small file cannot be written into {value.folder} ({value.problem})"
        elif value.took_s > SLOW_WRITE_S:
            slow[seen.node] = value.took_s
    return found, slow


def _fault(state: FolderState) -> str:
    """What keeps files from being written there, in words; empty when nothing is seen to."""
    if state.problem:
        return state.detail or state.problem
    if state.read_only:
        return f"{state.mount_point or state.nearest} is mounted read-only"
    if not state.writable:
        what = "may not write into" if state.exists else "may not make it in"
        return f"the job's user {what} {state.nearest}"
    if state.free_bytes is not None and state.free_bytes < NO_ROOM and state.total_bytes:
        return f"{state.mount_point} is full ({size(state.free_bytes)} of {size(state.total_bytes)} free)"
    if state.inodes_free == 0 and state.inodes_total:
        return f"{state.mount_point} has no inodes left (of {state.inodes_total})"
    for quota in state.quotas:
        if quota.limit_bytes is not None and quota.used_bytes >= quota.limit_bytes:
            return f"the {quota.whose}'s quota of {size(quota.limit_bytes)} is used up"
        if quota.limit_files is not None and (quota.used_files or 0) >= quota.limit_files:
            return f"the {quota.whose}'s quota of {quota.limit_files} files is used up"
    return ""


def _room(state: FolderState) -> float | None:
    """Bytes that may still be written: of the disk and of every quota."""
    if state.free_bytes is None:
        return None
    left = [quota.limit_bytes - quota.used_bytes for quota in state.quotas if quota.limit_bytes is not None]
    return max(0, min([state.free_bytes, *left]))


@check(
    "CKP012",
    "checkpoint-does-not-fit",
    plan=plan_destinations,
    probes=(folder_state,),
    cost="looks at the room of the folder; asks quota and lfs where the file system has them, 1.5 s each at most",
    severity=Severity.ERROR,
    evidence=(
        "mlfoundations/open_lm#154",
        "open-mmlab/mmdetection#12069",
        "awslabs/awsome-distributed-ai#1225",
        "https://arxiv.org/abs/1910.02054",
    ),
)
def checkpoint_does_not_fit(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """There is room for the first checkpoint, and for as many as the job keeps.

    What it checks: the least a checkpoint takes (2 bytes of each parameter, and 12 more with Adam's states in mixed
    precision, by the model's shape or name) against free space and quota where it goes. Less than one checkpoint is an
    error; less than are kept (`--save_total_limit` and one, or one at every `--save-interval`) is a warning, and so is
    a target of Lustre that is full beside others that are not.

    Why it matters: the disk is full in the middle of writing, the job ends, and what it leaves is half a checkpoint.

    Example: 98 GB for each checkpoint of seven billion parameters, and 80 GB free.

    Fix: another folder, fewer checkpoints kept, older ones removed, or weights alone (`--no-save-optim`).

    Known limits: a lower bound: a run that passes may still fill the disk. Only where the files give the size of the
    model; adapters are left out. Disks of single nodes are held against the whole on the first node, or against each
    node's share where every rank writes its part.

    Evidence: mlfoundations/open_lm#154, open-mmlab/mmdetection#12069, awslabs/awsome-distributed-ai#1225; Rajbhandari
    et al., arXiv 1910.02054.
    """
    met = False
    for item in destinations(job):
        have, missing = folders_of(facts, item.path)
        lop = _lopsided(have)
        if lop:
            met = True
            yield _targets(item, lop, have)
        needed = checkpoint_size(job, item.scope)
        if needed is None:
            continue
        met = True
        yield from _unseen(item, missing)
        usable = {node: state for node, state in have.items() if not _fault(state)}
        short = list(_fits(item, needed, usable, fleet))
        yield from short
        if usable and not short and not lop:
            yield passed(f"room in {item.path} on {len(usable)} nodes")
        elif have and not usable:
            yield unknown(f"room in {item.path}", "the folder takes no files at all (see CKP011)")
    if not met:
        yield not_applicable("room for checkpoints", "the files give no folder for checkpoints or no size of the model")


def _fits(
    item: Destination, needed: CheckpointSize, have: Mapping[str, FolderState], fleet: Fleet
) -> Iterator[Verdict]:
    """Verdicts for the nodes that lack room."""
    first: dict[str, float] = {}
    later: dict[str, float] = {}
    for node, state in have.items():
        room = _room(state)
        share = _share(item, state, node, fleet)
        if room is None or not share:
            continue
        if room < needed.each_bytes * share:
            first[node] = room
        elif needed.kept is not None and room < needed.each_bytes * share * needed.kept:
            later[node] = room
    what = "weights and optimizer states" if needed.states else "weights"
    for group, count in ((first, 1), (later, needed.kept or 1)):
        if not group:
            continue
        node = min(group, key=lambda name: group[name])
        wanted = needed.each_bytes * count * _share(item, have[node], node, fleet)
        each = f"{size(needed.each_bytes)} each ({what})"
        yield failed(
            f"{item.path}: {'first checkpoint' if count == 1 and group is first else 'kept checkpoints'}",
            f"{item.path} has room for {size(group[node])} on {fold(group)}, and "
            + ("the first checkpoint takes" if group is first else f"the {count} checkpoints that are kept take")
            + f" at least {size(wanted)}"
            + (f": {each}" if group is later else f" ({what})"),
            at=Evidence("room", size(group[node]), f"at least {size(wanted)}", f"df -h {have[node].nearest}", node),
            also=(*item.claims, *needed.claims),
            nodes=tuple(group),
            remedy=f"Free room below {have[node].nearest}, name another folder, or keep fewer checkpoints.",
            severity=None if group is first else Severity.WARNING,
            confidence=None if group is first else Confidence.MEDIUM,
        )


def _share(item: Destination, state: FolderState, node: str, fleet: Fleet) -> float:
    """The part of a checkpoint that surely goes to this node's file system."""
    if is_shared(state) or len(fleet.nodes) < 2:
        return 1.0
    if item.sharded:
        return 1.0 / len(fleet.nodes)
    return 1.0 if fleet.master is not None and fleet.master.name == node else 0.0


def _lopsided(have: Mapping[str, FolderState]) -> dict[str, str]:
    """Nodes that see a full target among others with room, and which target."""
    found: dict[str, str] = {}
    for node, state in have.items():
        shares = {target.name: target.free_bytes / target.total_bytes for target in state.targets if target.total_bytes}
        full = [name for name, share in shares.items() if share < TARGET_SHARE]
        if full and max(shares.values()) > OTHERS_SHARE:
            found[node] = fold(full, 4)
    return found


def _targets(item: Destination, full: Mapping[str, str], have: Mapping[str, FolderState]) -> Verdict:
    node, names = next(iter(full.items()))
    return failed(
        f"{item.path}: targets",
        f"{names} of {have[node].mount_point} is full while other targets have room: files striped over it fail",
        at=Evidence("storage targets", f"{names} full", "room on every target", f"lfs df -h {item.path}", node),
        also=item.claims,
        nodes=tuple(full),
        remedy=f"Set another stripe for the folder (`lfs setstripe -o ... {item.path}`), or ask for the target to be "
        "balanced.",
        severity=Severity.WARNING,
        confidence=Confidence.MEDIUM,
    )


@check(
    "CKP013",
    "checkpoint-folder-not-shared",
    plan=plan_destinations,
    probes=(folder_state,),
    cost="looks up the mount of the folder",
    severity=Severity.ERROR,
    evidence=("deepspeedai/DeepSpeed#5405", "https://docs.pytorch.org/docs/stable/distributed.checkpoint.html"),
)
def checkpoint_folder_not_shared(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """All nodes write their parts of a checkpoint to one file system.

    What it checks: on which file system the folder lies on each node. On a server for most nodes and on a local disk
    for some is an error, another export a warning; local disks everywhere are a warning where every rank writes a part
    of its own (ZeRO, a distributed optimizer, sharded FSDP).

    Why it matters: the pieces lie on as many disks as there are nodes; resuming on other nodes, or reading them
    together, finds one node's part.

    Example: /scratch is Lustre, and on node3, where the mount failed at boot, it is the local disk.

    Fix: mount it, or name a folder that all nodes share.

    Known limits: whether a file system is shared is told by its kind. Frameworks that are told that each node has its
    own folder (DeepSpeed's use_node_local_storage) are right with it.

    Evidence: deepspeedai/DeepSpeed#5405; the documentation of torch.distributed.checkpoint.
    """
    wanted = destinations(job)
    if not wanted or len(fleet.nodes) < 2 or stand_ins(fleet):
        yield not_applicable("checkpoint folder", "the files name no folder for checkpoints, or there is one machine")
        return
    for item in wanted:
        have, missing = folders_of(facts, item.path)
        yield from _unseen(item, missing)
        have = {node: state for node, state in have.items() if not state.problem}
        local = {node: state for node, state in have.items() if not is_shared(state)}
        if len(have) < 2:
            continue
        if not local or (len(local) == len(have) and not item.sharded):
            yield passed(f"{item.path} on {len(have)} nodes")
            continue
        node, state = next(iter(local.items()))
        some = len(local) < len(have)
        served = next((f"{s.file_system} ({s.source})" for s in have.values() if is_shared(s)), "")
        yield failed(
            f"{item.path}: local",
            f"{item.path} lies on a local disk ({state.file_system} at {state.mount_point}) on {fold(local)}"
            + (f", and on {served} on the other nodes: a mount may be missing" if some else ", and every rank writes"),
            at=Evidence(
                "checkpoint folder", state.file_system, served or "a shared one", f"findmnt -T {state.nearest}", node
            ),
            also=(*item.claims, *((claim, "every rank writes its part") for claim in item.sharded)),
            nodes=tuple(local),
            remedy=f"Mount it on {fold(local)}." if some else "Name a folder that all nodes share.",
            severity=None if some else Severity.WARNING,
            confidence=None if some else Confidence.MEDIUM,
        )
