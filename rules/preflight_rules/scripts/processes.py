"""The processes of a training script: spawned ranks, loader workers, the GPU of each rank, and tasks in TF_CONFIG."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from preflight.model.findings import Confidence, Severity, Status
from preflight.model.job import Claim, Job, Launch, Plain, Unresolved, as_int, is_whole_number, lift
from preflight.model.job.claim import job_value
from preflight.model.job.value import Scalar, numbers, texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided, unknown
from preflight.plugins.claim_text import counted, joined, placed, quoted, why_unresolved
from preflight.plugins.questions import LaunchQuestion, launches_with, subjects
from preflight_rules.launches import (
    certainly_several,
    launches_of,
    nodes_of,
    ranks_started,
    started_files,
    subject_claims,
)

_STARTERS = frozenset(
    {"torchrun", "torch.distributed.launch", "deepspeed", "accelerate", "srun", "mpirun", "horovodrun", "paddle"}
)


@rule(
    "PGR004",
    "spawn-under-launcher",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no script under a launcher spawns ranks",
)
def spawn_under_launcher(job: Job) -> Iterator[Verdict]:
    """A launcher starts a script several times per node, and the script spawns all ranks itself.

    What it checks: A script that calls `torch.multiprocessing.spawn` or `paddle.distributed.spawn`, and never reads the
    variables of a launcher, is started once on each node.

    Why it matters: Each of the started processes starts all ranks again: 64 instead of 8 on eight GPUs. They listen on
    the same port ("Address already in use"), or share the GPUs until the memory is full.

    Example: `mp.spawn(main, nprocs=torch.cuda.device_count())` and `torchrun --nproc_per_node=8 train.py`.

    Fix: Start the script with plain `python`, or remove the spawn and read LOCAL_RANK, RANK and WORLD_SIZE.

    Known limits: A script that reads any of these variables may not spawn under a launcher, and is not judged.
    """
    for subject, spawn in subject_claims(job, "spawned_processes"):
        for launch in launches_of(job, spawn):
            processes = job.setting("processes_per_node", launch.scope)
            if launch.launcher not in _STARTERS or not processes:
                continue
            verdict = undecided(subject, (spawn, *processes) if numbers(spawn.value) else processes, launch)
            counts = numbers(spawn.value)
            if verdict is None and not (
                not certainly_several(job_value(processes)) or (counts and max(counts) == 1) or spawn.condition
            ):
                verdict = failed(
                    subject,
                    f"{quoted(spawn)} starts all ranks of the node in each of the"
                    f" {joined(numbers(job_value(processes)))} processes that {launch.launcher} starts there.",
                    at=spawn,
                    also=((processes[0], "started already"),),
                    remedy="Start the script once on each node (python train.py), or remove the spawn and read "
                    "LOCAL_RANK, RANK and WORLD_SIZE.",
                )
            yield verdict or passed(subject)


@rule(
    "PGR005",
    "more-spawned-than-group-or-gpus-hold",
    severity=Severity.WARNING,
    otherwise="no script that spawns ranks sets a world size or visible GPUs",
)
def more_spawned_than_group_or_gpus_hold(job: Job) -> Iterator[Verdict]:
    """A script spawns more processes than its group has ranks, or than there are visible GPUs.

    What it checks: `nprocs` of `torch.multiprocessing.spawn` is at most the `world_size` that the script gives its
    group, and, with NCCL, at most the devices in the CUDA_VISIBLE_DEVICES that the script sets.

    Why it matters: Ranks at or above the world size are rejected. A rank without its own GPU stops with "invalid device
    ordinal", or shares a GPU, which NCCL rejects.

    Example: `mp.spawn(run, nprocs=8)` and `init_process_group("nccl", rank=rank, world_size=4)`.

    Fix: Derive both from one number: `world_size = torch.cuda.device_count()`.

    Known limits: Judged only if a script spawns once and gives one world size.
    """
    spawn_claims = list(subject_claims(job, "spawned_processes"))
    for subject, spawn in spawn_claims:
        world_sizes = [c for c in job.about("world_size") if c.span.path == spawn.span.path and c.source == "python"]
        masks = [c for c in job.about("env.CUDA_VISIBLE_DEVICES") if c.span.path == spawn.span.path]
        uses_nccl = any("nccl" in texts(c.value) for c in job.about("backend") if c.span.path == spawn.span.path)
        bounds = [(world_sizes[0], "ranks of the group", "the group has")] if len(world_sizes) == 1 else []
        if uses_nccl and len(masks) == 1:
            bounds.append((masks[0], "visible GPUs", "the script leaves visible"))
        if not bounds or sum(1 for _, other in spawn_claims if other.span.path == spawn.span.path) > 1:
            continue
        for bound, note, limit_text in bounds:
            limits = _device_counts(bound) if bound in masks else numbers(bound.value)
            requested = numbers(spawn.value)
            verdict = undecided(subject, (spawn, bound))
            if verdict is None and requested and limits and min(requested) > max(limits):
                verdict = failed(
                    subject,
                    f"{quoted(spawn)} starts {min(requested)} processes, but {limit_text} only {max(limits)} "
                    f"according to {placed(bound)}.",
                    at=spawn,
                    also=((bound, note),),
                    remedy="Derive both from the same number, such as torch.cuda.device_count().",
                )
            yield verdict or passed(subject)


def _device_counts(mask: Claim) -> tuple[int, ...]:
    """Return the number of devices in each literal device list; a list that does not consist of numbers is left out."""
    device_lists = [text.split(",") for text in texts(mask.value)]
    return tuple(len(items) for items in device_lists if all(is_whole_number(item.strip()) for item in items))


@rule(
    "DAT023",
    "more-loader-workers-than-cores",
    severity=Severity.WARNING,
    otherwise="no launch sets both the number of loader workers and the number of cores",
    each=launches_with("dataloader_workers", "processes_per_node", "cpus_per_task", "tasks_per_node"),
)
def more_loader_workers_than_cores(question: LaunchQuestion) -> Verdict | None:
    """The loaders on a node start more worker processes than the number of cores that Slurm grants.

    What it checks: The workers per loader times the ranks per node are at most twice the cores granted on the node
    (tasks times cpus-per-task).

    Why it matters: Workers that share a core take turns: decoding slows down and the GPUs wait for data, on every step
    of the run.

    Example: `DataLoader(..., num_workers=16)`, four ranks per node and `#SBATCH --cpus-per-task=8` for one task.

    Fix: Request more cores, or give each rank about as many workers as it has cores.

    Known limits: With up to twice as many workers as cores, the finding is informational, because workers that wait for
    storage do not need a full core.
    """
    workers, processes, cores, tasks = question.of
    worker_product = lift(_product_of, as_int(job_value(workers)), as_int(job_value(processes)))
    core_product = lift(_product_of, as_int(job_value(cores)), as_int(job_value(tasks)))
    worker_counts, core_counts = numbers(worker_product), numbers(core_product)
    if not worker_counts or not core_counts:
        return unknown(question.subject, "the number of cores or loader workers per node is unknown")
    if min(worker_counts) <= max(core_counts):
        return None
    is_severe = min(worker_counts) > 2 * max(core_counts)
    counts = joined(worker_counts), joined(core_counts)
    return _too_many_workers_finding(question.of.launch, workers[0], cores[0], counts, severe=is_severe)


def _too_many_workers_finding(
    launch: Launch, workers: Claim, cores: Claim, counts: tuple[str, str], *, severe: bool
) -> Verdict:
    return failed(
        launch.id,
        f"{quoted(workers)} starts {counts[0]} loader workers on each node, but {quoted(cores)} grants {counts[1]}"
        " cores there.",
        at=workers,
        also=((cores, "cores granted"),),
        remedy="Request more cores per task, or use about as many workers per rank as the rank has cores.",
        severity=None if severe else Severity.INFO,
    )


def _product_of(item: Plain, other: Plain) -> Plain:
    if isinstance(item, int) and isinstance(other, int):
        return item * other
    raise TypeError("not two known numbers")


# The GPU that a training script chooses for its rank, and the device maps of its models.


_MASK = "env.CUDA_VISIBLE_DEVICES"


@rule(
    "TRN004",
    "physical-gpu-index-after-mask",
    severity=Severity.ERROR,
    otherwise="no script that runs with CUDA_VISIBLE_DEVICES selects a GPU",
)
def physical_gpu_index_after_mask(job: Job) -> Iterator[Verdict]:
    """A GPU is chosen by its physical index after CUDA_VISIBLE_DEVICES has renumbered them.

    What it checks: If a script sets CUDA_VISIBLE_DEVICES, the index given to `set_device`, `torch.device` or
    `device_ids` is not an entry of that list.

    Why it matters: The visible GPUs are renumbered from 0. With four visible GPUs, index 4 does not exist: "invalid
    device ordinal". The fault goes unnoticed as long as the list is 0,1,2,3.

    Example: `os.environ["CUDA_VISIBLE_DEVICES"] = "4,5,6,7"` and `torch.cuda.set_device(int(gpus[local_rank]))`.

    Fix: Use the position in the list, which is the local rank: `torch.cuda.set_device(local_rank)`.

    Known limits: If the list is not literal, or some of its entries are small enough to be valid, the finding is a
    warning.
    """
    for subject, choice in subject_claims(job, "device_of_masked_list"):
        mask = _effective_mask(job, choice)
        devices = next((tuple(value) for value in choice.alternatives if isinstance(value, tuple)), ())
        if not devices and mask is not None:
            devices = _listed_devices(mask)
        missing = [index for index in devices if isinstance(index, int) and index >= len(devices)]
        if devices and not missing:
            yield passed(subject)
        elif isinstance(choice.value, Unresolved) and mask is not None and mask.condition:
            yield unknown(subject, f"{quoted(choice)} depends on the branch `{mask.condition}`", at=choice)
        else:
            is_certain = bool(devices) and len(missing) == len(devices) and why_unresolved((choice,)) is None
            yield _physical_index_finding(
                subject, choice, mask, devices, missing, None if is_certain else Severity.WARNING
            )
    for subject, choice in subject_claims(job, "device_index"):
        mask = _effective_mask(job, choice)
        devices, indices = _listed_devices(mask) if mask is not None else (), numbers(choice.value)
        if mask is None or not devices or len(indices) != 1:
            continue
        if indices[0] < len(devices):
            yield passed(subject)
        elif why_unresolved((choice, mask)) is not None:
            yield unknown(subject, f"{quoted(choice)} or {quoted(mask)} is under a condition", at=choice)
        else:
            # A module may contain such a number for another kind of run.
            is_certain = choice.span.path in (*started_files(job), mask.span.path)
            severity = None if is_certain else Severity.WARNING
            yield _physical_index_finding(subject, choice, mask, devices, [indices[0]], severity)


def _effective_mask(job: Job, choice: Claim) -> Claim | None:
    """Return the CUDA_VISIBLE_DEVICES of the script, or else of its launch; None if unknown."""
    script_mask = next((c for c in job.about(_MASK) if c.span.path == choice.span.path), None)
    if script_mask is not None:
        return script_mask
    for launch in launches_of(job, choice):
        masks = job.setting(_MASK, launch.scope)
        if len(masks) == 1:
            return masks[0]
    return None


def _listed_devices(mask: Claim) -> tuple[Scalar, ...]:
    """Return the indices in a literal device list; empty if the list is unknown or does not consist of numbers."""
    values = mask.alternatives
    parts = str(values[0]).split(",") if len(values) == 1 else []
    if not parts or not all(is_whole_number(part.strip()) and len(part) < 5 for part in parts):
        return ()
    return tuple(int(part) for part in parts)


def _physical_index_finding(
    subject: str,
    choice: Claim,
    mask: Claim | None,
    devices: tuple[Scalar, ...],
    missing: Sequence[Plain],
    severity: Severity | None,
) -> Verdict:
    mask_text = ",".join(map(str, devices))
    renumbering = f"`{mask_text}` leaves {counted(len(devices), 'GPU')}, numbered from 0"
    detail = (
        f"{renumbering}, so index {' or '.join(map(str, missing))} does not exist"
        if devices
        else "the visible GPUs are renumbered from 0"
    )
    return failed(
        subject,
        f"{quoted(choice)} uses a physical index from the list in CUDA_VISIBLE_DEVICES, but {detail}.",
        at=choice,
        also=((mask, "renumbers the GPUs"),) if mask is not None else (),
        remedy="Use the position in the list, which is the local rank: torch.cuda.set_device(local_rank).",
        severity=severity,
    )


@rule(
    "TRN005",
    "gpu-chosen-by-global-rank",
    severity=Severity.ERROR,
    otherwise="no script selects a GPU by its global rank",
)
def gpu_chosen_by_global_rank(job: Job) -> Iterator[Verdict]:
    """A rank uses its global rank as GPU index although the job has more than one node.

    What it checks: If several ranks run on each of several nodes, the index given to `set_device`, `torch.device` or
    `device_ids` is not the global rank.

    Why it matters: The ranks of the second node start at the number of GPUs of the first node, and the second node has
    no GPU with such an index: "invalid device ordinal" on all nodes but the first.

    Example: `torch.cuda.set_device(dist.get_rank())` and `torchrun --nnodes=2 --nproc_per_node=8`.

    Fix: Use the local rank: `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))`.

    Known limits: A rank that is passed in from another file is not judged, and neither is a script on one node.
    """
    reported_paths: set[str] = set()
    for subject, choice in subject_claims(job, "device_of_global_rank"):
        launches = list(launches_of(job, choice))
        if not launches:
            yield unknown(subject, f"the number of nodes that run {quoted(choice)} is not given", at=choice)
            continue
        verdicts = [_global_rank_verdict(job, choice, launch.id) for launch in launches]
        verdict = next((verdict for verdict in verdicts if verdict is not None), passed(subject))
        if verdict.status is Status.FAIL and choice.span.path in reported_paths:
            # The same rank is used again for the model and for DDP: one finding for each script.
            continue
        reported_paths.update([choice.span.path] if verdict.status is Status.FAIL else [])
        yield verdict


def _global_rank_verdict(job: Job, choice: Claim, launch_id: str) -> Verdict | None:
    launch = job.launch(launch_id)
    nodes = nodes_of(job, launch)
    processes = job.setting("processes_per_node", launch.scope)
    rank_count, rank_claims = ranks_started(job, launch.scope)
    if isinstance(nodes, Unresolved):
        return unknown(launch.id, f"the number of nodes that run {quoted(choice)} is unknown: {nodes.why}", at=choice)
    if not certainly_several(nodes):
        return None
    if not processes or not certainly_several(rank_count):
        return unknown(launch.id, "the number of ranks on each node is unknown", at=choice)
    if isinstance(processes[0].value, Unresolved) or choice.condition or launch.condition:
        return unknown(launch.id, f"{quoted(choice)} depends on a value known only at run time", at=choice)
    node_claims = (*job.requirement_claims("nodes", launch.scope), *job.setting("nodes", launch.scope), *rank_claims)
    local_rank = "hvd.local_rank()" if job.about("horovod_started", launch.scope) else 'int(os.environ["LOCAL_RANK"])'
    return failed(
        launch.id,
        f"{quoted(choice)} uses the global rank as GPU index, but {quoted(node_claims[0])} requests several nodes: "
        "no node but the first has a GPU with that index.",
        at=choice,
        also=((node_claims[0], "several nodes"),),
        remedy=f"Use the local rank: torch.cuda.set_device({local_rank}).",
    )


#: Device maps that spread one model over all visible GPUs.
_SPREADING_MAPS = frozenset(("auto", "balanced", "balanced_low_0", "sequential"))


def _words_after(launch: Launch, option: str) -> set[str | None]:
    """Return the words that follow each occurrence of an option on the launch line."""
    words = launch.arguments
    return {words[index + 1] for index, word in enumerate(words[:-1]) if word == option.partition(" ")[0]}


@rule(
    "HFT016",
    "swift-splits-model-over-visible-gpus",
    severity=Severity.ERROR,
    profile="default",
    otherwise="no swift command requests DeepSpeed or a device map",
)
def swift_splits_model_over_visible_gpus(job: Job) -> Iterator[Verdict]:
    """A process of ms-swift sees several GPUs, spreads the model over them, and stops because of DeepSpeed or vLLM.

    What it checks: A `swift` command with `--deepspeed`, or with GRPO and `--use_vllm true`, starts one process for
    each GPU that CUDA_VISIBLE_DEVICES lists, and a command with several processes has no `--device_map auto`.

    Why it matters: swift reads the number of processes from NPROC_PER_NODE, which is 1 by default. A process that sees
    two GPUs or more spreads its model over them: "DeepSpeed is not compatible with `device_map`". With one process per
    GPU, Accelerate refuses a device map.

    Example: `CUDA_VISIBLE_DEVICES=0,1,2 swift sft --deepspeed zero3 ...`.

    Fix: `NPROC_PER_NODE=3 CUDA_VISIBLE_DEVICES=0,1,2 swift sft --deepspeed zero3 ...`.

    Known limits: Without CUDA_VISIBLE_DEVICES, the number of GPUs is that of the machine, which is unknown.
    """
    for launch in job.launches:
        # With NPROC_PER_NODE it is a line of torchrun.
        if launch.launcher != "swift" and not (launch.program or "").startswith("swift/cli/"):
            continue
        options = dict(job.settings("transformers", launch.scope))
        uses_vllm = "grpo" in _words_after(launch, "--rlhf_type") and "true" in _words_after(launch, "--use_vllm")
        deepspeed = options.get("deepspeed") or ((options.get("use_vllm") or launch) if uses_vllm else None)
        device_map = next((word for word in _words_after(launch, "--device_map") if word in _SPREADING_MAPS), None)
        process_claims = job.setting("processes_per_node", launch.scope)
        if (deepspeed is None and device_map is None) or not process_claims:
            continue
        masks = job.setting("env.CUDA_VISIBLE_DEVICES", launch.scope)
        if undecided_verdict := undecided(launch.id, (*process_claims, *masks), launch):
            yield undecided_verdict
            continue
        if not masks:
            yield unknown(
                launch.id, "the number of GPUs that are visible to a process is not given", at=process_claims[0]
            )
            continue
        gpus = min(len([item for item in text.split(",") if item.strip()]) for text in texts(job_value(masks)) or ("",))
        processes = max(numbers(job_value(process_claims)) or (1,))
        if deepspeed is not None and gpus >= 2 * processes:
            yield failed(
                launch.id,
                f"{placed(masks[0])} shows {counted(gpus, 'GPU')} to {counted(processes, 'process', 'processes')}: "
                "swift spreads the model over these GPUs, which it refuses together with "
                f"{quoted(deepspeed) if isinstance(deepspeed, Claim) else '`--use_vllm true`'}.",
                at=deepspeed,
                also=((masks[0], "the GPUs"), (process_claims[0], "the processes")),
                remedy=f"Put `NPROC_PER_NODE={gpus}` before the command.",
            )
        elif device_map is not None and processes > 1 and gpus < 2 * processes:
            yield failed(
                launch.id,
                f"`--device_map {device_map}` together with {counted(processes, 'process', 'processes')} for"
                f" {counted(gpus, 'GPU')}: each process would spread its model over all GPUs, which Accelerate "
                "refuses.",
                at=launch,
                also=((masks[0], "the GPUs"), (process_claims[0], "the processes")),
                remedy="Remove the option, or start at most one process for every two GPUs.",
            )
        else:
            yield passed(launch.id)


# TensorFlow clusters in TF_CONFIG: roles, addresses and the process's own task.


#: Roles whose processes open a server, which the strategy waits for.
_SERVER_ROLES = frozenset(("chief", "master", "worker", "ps"))
_ROLES = _SERVER_ROLES | {"evaluator"}
_MAX_LENGTH = 200_000


@dataclass(frozen=True, slots=True)
class _Cluster:
    """One TF_CONFIG: addresses by role (None if unknown), this process's role and index, and whether it has a task."""

    claim: Claim
    roles: dict[str, list[str | None] | None]
    role: str | None
    index: int | None
    has_task: bool


def _clusters(job: Job) -> Iterator[tuple[str, _Cluster | None, Claim]]:
    """Yield each literal TF_CONFIG once: its subject, the parsed cluster (None if it is not valid), and its claim."""
    seen_claims: set[tuple[str, int, int]] = set()
    for subject, scope, _ in subjects(job):
        for claim in (*job.about("tf_config", scope), *job.about("env.TF_CONFIG", scope)):
            key = (claim.span.path, claim.span.line, claim.span.column)
            if key in seen_claims or (claim.quantity == "env.TF_CONFIG" and isinstance(claim.value, Unresolved)):
                continue
            seen_claims.add(key)
            for value in claim.alternatives:
                yield subject, _parse_cluster(claim, value), claim


def _parse_cluster(claim: Claim, value: object) -> _Cluster | None:
    if not isinstance(value, str) or len(value) > _MAX_LENGTH:
        return None
    try:
        table: Any = json.loads(value)
    except (ValueError, RecursionError):
        return None
    if not isinstance(table, dict) or not isinstance(table.get("cluster"), dict):
        return None
    roles: dict[str, list[str | None] | None] = {}
    for name, hosts in table["cluster"].items():
        if isinstance(hosts, dict):
            hosts = list(hosts.values())
        addresses = hosts if isinstance(hosts, list) else None
        roles[str(name)] = (
            None if addresses is None else [each if isinstance(each, str) else None for each in addresses]
        )
    task = table.get("task")
    task = task if isinstance(task, dict) else {}
    index, role = task.get("index"), task.get("type")
    if isinstance(index, str) and is_whole_number(index) and len(index) < 9:
        index = int(index)
    task_index = index if isinstance(index, int) and not isinstance(index, bool) else None
    return _Cluster(claim, roles, role if isinstance(role, str) else None, task_index, bool(task))


@rule("TFP001", "evaluator-in-cluster", severity=Severity.ERROR, otherwise="no file contains a literal TF_CONFIG")
def evaluator_in_cluster(job: Job) -> Iterator[Verdict]:
    """TF_CONFIG lists the evaluator as a member of the cluster.

    What it checks: The `cluster` part of TF_CONFIG contains only chief, worker and ps; an evaluator appears only in its
    own `task`.

    Why it matters: The strategy connects to every address of the cluster before it starts. An evaluator starts no
    server, so all others wait for it forever. The evaluator itself connects to no other process, so what its own
    TF_CONFIG lists is harmless.

    Example: `{"cluster": {"chief": [...], "worker": [...], "ps": [...], "evaluator": ["host4:2222"]}, ...}`.

    Fix: Remove the evaluator from `cluster`.

    Known limits: Judged only for a literal TF_CONFIG; operators that generate it at run time omit the evaluator.
    """
    for subject, cluster, claim in _clusters(job):
        if cluster is None:
            yield unknown(subject, "TF_CONFIG is not a complete JSON value in the files", at=claim)
        elif "evaluator" in cluster.roles and cluster.role != "evaluator":
            yield failed(
                subject,
                'the cluster in TF_CONFIG lists an "evaluator", which starts no server: every process that connects to'
                " the cluster waits for the evaluator forever.",
                at=claim,
                remedy='Remove "evaluator" from "cluster"; the evaluator needs only its own "task".',
            )
        else:
            yield passed(subject)


@rule("TFP002", "task-not-in-cluster", severity=Severity.ERROR, otherwise="no file contains a literal TF_CONFIG")
def task_not_in_cluster(job: Job) -> Iterator[Verdict]:
    """The task that TF_CONFIG gives a process does not exist in its cluster, or an address exists twice.

    What it checks: The role of `task` is one of the cluster (or evaluator), its index is below the number of addresses
    there, and no address is listed twice.

    Why it matters: The process stops with IndexError, or listens at no address, and the others wait for it. If two
    tasks share an address, the second cannot bind it.

    Example: Two workers and `"task": {"type": "worker", "index": 2}`.

    Fix: Count from 0 in each role.

    Known limits: An index known only at run time is not judged.
    """
    for subject, cluster, claim in _clusters(job):
        if cluster is None:
            yield unknown(subject, "TF_CONFIG is not a complete JSON value in the files", at=claim)
            continue
        fault = _cluster_fault(cluster)
        if fault:
            yield failed(
                subject, fault, at=claim, remedy="Give every task its own address, and number the tasks from 0."
            )
        elif cluster.has_task and cluster.role != "evaluator" and (cluster.role is None or cluster.index is None):
            yield unknown(subject, f"the task in {quoted(claim)[:60]} is known only at run time", at=claim)
        else:
            yield passed(subject)


def _cluster_fault(cluster: _Cluster) -> str:
    addresses = [host for hosts in cluster.roles.values() for host in hosts or () if host]
    duplicates = sorted({host for host in addresses if addresses.count(host) > 1}) if len(addresses) < 5000 else []
    if duplicates:
        return f"TF_CONFIG lists {duplicates[0]} twice: two tasks cannot listen on one address."
    unknown_roles = sorted(set(cluster.roles) - _ROLES)
    if unknown_roles:
        return f"TF_CONFIG has the unknown role `{unknown_roles[0]}`; the roles are chief, worker, ps and evaluator."
    if cluster.role is None or cluster.role == "evaluator":
        return ""
    if cluster.role not in cluster.roles:
        return f"TF_CONFIG makes this process a `{cluster.role}`, but its cluster has none."
    hosts = cluster.roles[cluster.role]
    if hosts is not None and cluster.index is not None and not 0 <= cluster.index < len(hosts):
        return (
            f"TF_CONFIG makes this process {cluster.role} {cluster.index}, but its cluster lists only {len(hosts)} "
            "of that role, numbered from 0."
        )
    return ""


@rule(
    "TFP003",
    "parameter-servers-missing",
    severity=Severity.ERROR,
    otherwise="no parameter-server strategy has a literal TF_CONFIG",
)
def parameter_servers_missing(job: Job) -> Iterator[Verdict]:
    """A parameter-server strategy is given a cluster without parameter servers or without workers.

    What it checks: If a script creates a ParameterServerStrategy and contains TF_CONFIG as a literal, its cluster has
    `ps` and `worker`.

    Why it matters: The strategy stops with ValueError, because no process stores the variables, or none train.

    Example: `tf.distribute.ParameterServerStrategy(resolver)` and `{"cluster": {"worker": [...]}, ...}`.

    Fix: List the servers under `ps`, or use MultiWorkerMirroredStrategy.

    Known limits: Judged only if the strategy and TF_CONFIG are in files of the same job.
    """
    strategies = [claim for claim in job.about("tf_strategy") if "ParameterServer" in str(claim.alternatives)]
    for subject, cluster, claim in _clusters(job) if strategies else ():
        if cluster is None or not cluster.roles:
            yield unknown(subject, "TF_CONFIG is not a complete JSON value in the files", at=claim)
            continue
        missing = [role for role in ("ps", "worker") if cluster.roles.get(role, []) == []]
        if missing:
            yield failed(
                subject,
                f"{quoted(strategies[0])} needs parameter servers and workers, but the cluster in TF_CONFIG has no"
                f" `{missing[0]}`.",
                at=claim,
                also=((strategies[0], "the strategy"),),
                remedy=f'List them under "{missing[0]}", or use MultiWorkerMirroredStrategy.',
            )
        else:
            yield passed(subject)
