"""Launch lines that start on the wrong nodes or with wrong counts and ranks, and simultaneous starts of one program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Launch, Scope, Value
from preflight.model.job.claim import job_value
from preflight.model.job.value import is_expanded_in_script, items, numbers, texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided, unknown
from preflight.plugins.claim_text import argument_of, joined, placed, quoted, where
from preflight.plugins.questions import LaunchQuestion, Stated, launches_with, stated_by
from preflight_rules.launches import (
    AGENT_LAUNCHERS,
    certainly_one,
    certainly_several,
    is_same_line_again,
    starting_file,
    waited_between,
)
from preflight_rules.rendezvous.arguments import (
    RankedProcess,
    first_difference,
    node_groups,
    paddle_peers,
    processes_of_ranks,
)

_START_ALL_NODES = ("deepspeed", "colossalai")
_START_ON_EACH_NODE = ("srun", "mpirun", "pdsh", "clush")


@rule(
    "LCH006",
    "reaching-launcher-started-on-each-node",
    severity=Severity.ERROR,
    otherwise="no launcher that starts processes on other nodes is started by another launcher",
)
def reaching_launcher_started_on_each_node(job: Job) -> Iterator[Verdict]:
    """A launcher that itself starts processes on all nodes is started on each node.

    What it checks: `deepspeed` and `colossalai run` are not started several times by srun, mpirun or pdsh, unless
    options tell deepspeed that each node starts it (`--no_ssh`, `--node_rank`).

    Why it matters: Without a hostfile each copy trains alone on the GPUs of its node, without an error. With a hostfile
    each copy logs in to all nodes and starts all ranks again: ports and GPUs are used several times.

    Example: `#SBATCH --nodes=2` and `srun deepspeed train.py`.

    Fix: Start it once, on the first node, with a hostfile; or use torchrun under srun.

    Known limits: The number of tasks that srun starts must be known.
    """
    for launch in job.launches:
        starter = next((name for name in launch.wrappers if name in _START_ON_EACH_NODE), None)
        if launch.launcher not in _START_ALL_NODES or starter is None:
            continue
        copies = _copy_claims(job, launch)
        undecided_verdict = undecided(launch.id, copies[:1], launch)
        starts_itself = job.setting("each_node_itself", launch.scope) or job.setting("node_rank", launch.scope)
        if starts_itself or job.setting("single_node_step", launch.scope):
            yield passed(launch.id)
        elif undecided_verdict is not None:
            yield undecided_verdict
        elif not copies:
            yield passed(launch.id)
        else:
            yield failed(
                launch.id,
                f"{launch.launcher} starts the processes on all nodes, but {starter} starts {launch.launcher} "
                f"{joined(numbers(job_value(copies[:1])))} times ({placed(copies[0])}): each copy is a separate "
                "launch.",
                at=launch,
                also=((copies[0], "copies"),),
                remedy=f"Start {launch.launcher} once, without {starter} and with a hostfile; or put torchrun"
                f" under {starter}.",
            )


def _copy_claims(job: Job, launch: Launch) -> tuple[Claim, ...]:
    """Return the claims about how often the launcher is started; empty if it is started once, or no claim is known."""
    unresolved: tuple[Claim, ...] = ()
    for name in ("tasks", "tasks_per_node", "nodes"):
        claims = tuple(c for c in job.setting(name, launch.scope) if c.source in ("slurm", "mpirun", "pdsh", "clush"))
        if claims and certainly_several(job_value(claims)):
            return claims
        if claims and not numbers(job_value(claims)):
            unresolved = unresolved or claims
        elif claims and name == "tasks":
            return ()
    return unresolved


_STARTERS = ("srun", "mpirun", "jsrun", "aprun")
#: Quantities of a process's arguments, and variables, that give it its rank.
_RANK_QUANTITIES = ("rank", "local_rank")
_RANK_VARIABLES = (
    "env.RANK",
    "env.LOCAL_RANK",
    "env.SLURM_PROCID",
    "env.CUDA_VISIBLE_DEVICES",
    "env.PADDLE_TRAINER_ID",
)

_GPU_QUANTITIES = ("gpus_per_node", "gpus_per_task")


@rule(
    "LCH004",
    "task-rank-expanded-too-early",
    severity=Severity.ERROR,
    otherwise="no program that runs as several tasks is given a rank",
)
def task_rank_expanded_too_early(job: Job) -> Iterator[Verdict]:
    """The batch script expands a rank variable itself, so all tasks get the same rank.

    What it checks: If srun, mpirun, jsrun or aprun starts several tasks of a program, RANK, LOCAL_RANK and
    CUDA_VISIBLE_DEVICES, and a rank among the program's arguments, are not set from SLURM_PROCID, SLURM_LOCALID,
    OMPI_COMM_WORLD_RANK and the like in the script itself.

    Why it matters: In the script these variables are 0, or not set at all. Every task then acts as rank 0: all wait for
    the others at the rendezvous, or all use the first GPU.

    Example: `export RANK=$SLURM_PROCID` above `srun python train.py`.

    Fix: Let a shell in the task expand it: `srun bash -c 'RANK=$SLURM_PROCID python train.py'`.

    Known limits: A program that reads SLURM_PROCID itself and ignores RANK is not recognized. RDV003 judges the node
    rank of a launcher.
    """
    for launch in job.launches:
        if not set(_STARTERS) & set(launch.wrappers) or launch.launcher in AGENT_LAUNCHERS:
            continue
        rank_claims = [c for name in (*_RANK_QUANTITIES, *_RANK_VARIABLES) for c in job.setting(name, launch.scope)]
        if "srun" in launch.wrappers and any(job.setting(name, launch.scope) for name in _GPU_QUANTITIES):
            # Slurm sets CUDA_VISIBLE_DEVICES in each task of a step with GPUs (gres_common.c, env_array_overwrite).
            rank_claims = [claim for claim in rank_claims if claim.quantity != "env.CUDA_VISIBLE_DEVICES"]
        if not rank_claims:
            continue
        early_ranks = [claim for claim in rank_claims if is_expanded_in_script(claim.value)]
        tasks, claims = _task_count(job, launch)
        script = next((name for name in (launch.program, *launch.wrappers) if name.endswith((".sh", ".bash"))), "")
        if not early_ranks or certainly_one(tasks):
            yield passed(launch.id)
        elif script:
            yield unknown(launch.id, f"{script} may set the rank in each task", at=early_ranks[0])
        elif not certainly_several(tasks) or early_ranks[0].condition:
            yield unknown(
                launch.id, f"cannot determine how many tasks {quoted(early_ranks[0])} applies to", at=early_ranks[0]
            )
        else:
            yield _early_rank_finding(launch, early_ranks[0], joined(numbers(tasks)), claims)


def _task_count(job: Job, launch: Launch) -> tuple[Value, tuple[Claim, ...]]:
    for name in ("world_size", "tasks", "tasks_per_node"):
        claims = job.setting(name, launch.scope)
        if certainly_several(job_value(claims)):
            return job_value(claims), claims
    claims = job.setting("tasks", launch.scope)
    return job_value(claims), claims


def _early_rank_finding(launch: Launch, rank: Claim, count: str, claims: tuple[Claim, ...]) -> Verdict:
    starter = next(name for name in launch.wrappers if name in _STARTERS)
    return failed(
        launch.id,
        f"{quoted(rank)} is expanded before {starter} starts the {count} tasks, when it is still 0 or empty: every "
        "task gets the same value.",
        at=rank,
        also=((launch, "started as several tasks"), *((claim, f"{count} tasks") for claim in claims[:1])),
        remedy=f"Let a shell expand it in each task: {starter} bash -c '...', with single quotes.",
    )


@rule("LCH005", "elastic-range-unusable", severity=Severity.ERROR, otherwise="no launch requests a range of nodes")
def elastic_range_unusable(job: Job) -> Iterator[Verdict]:
    """torchrun is given a node range that it rejects, or that its static rendezvous ignores.

    What it checks: In `--nnodes=MIN:MAX` the first number is at least 1 and not above the second; if the two differ,
    the backend allows nodes to join and leave (c10d, etcd), unlike the static default.

    Why it matters: torchrun stops if the range is reversed. With the static backend the job always waits for MAX nodes,
    and ends when it loses one.

    Example: `torchrun --nnodes=1:4 --master_addr=$HEAD ...` without `--rdzv_backend=c10d`.

    Fix: `torchrun --nnodes=1:4 --rdzv_backend=c10d --rdzv_endpoint=$HEAD:29400 --max_restarts=3 ...`.

    Known limits: Whether the program can continue with another world size is not judged. The second case is a warning.
    """
    for launch in job.launches:
        if launch.launcher not in ("torchrun", "torch.distributed.launch"):
            continue
        ranges = [c for c in job.about("min_nodes", launch.scope) if c.scope.launch == launch.id]
        nodes = [c for c in job.requirement_claims("nodes", launch.scope) if c.scope.launch == launch.id]
        rejected = [c for c in job.about("rejected_node_range", launch.scope) if c.scope.launch == launch.id]
        if not ranges and not rejected:
            # For `--nnodes=$LEAST:4` the reader gives neither number.
            unresolved_range = undecided(
                launch.id, [c for c in nodes if ":" in c.spelling.partition("nnodes")[2]], launch
            )
            if unresolved_range is not None:
                yield unresolved_range
            continue
        if rejected:
            yield _invalid_range_finding(launch, rejected[0])
            continue
        backend = job.setting("rendezvous_backend", launch.scope)
        verdict = undecided(launch.id, (*backend, *ranges, *nodes), launch)
        backends = texts(job_value(backend))
        if verdict is None and backends == ("static",) and len(numbers(job_value(nodes))) > 1:
            verdict = failed(
                launch.id,
                f"{quoted(ranges[0])} requests a range of nodes, but the static rendezvous waits for all"
                f" {max(numbers(job_value(nodes)))} of them.",
                at=ranges[0],
                also=((backend[0], "static backend"),),
                remedy="Add --rdzv_backend=c10d and --rdzv_endpoint=HOST:PORT, or set a fixed number of nodes.",
                severity=Severity.WARNING,
            )
        yield verdict or passed(launch.id)


def _invalid_range_finding(launch: Launch, claim: Claim) -> Verdict:
    return failed(
        launch.id,
        f"{quoted(claim)} is not a valid range of nodes: torchrun stops unless 0 < MIN <= MAX.",
        at=claim,
        remedy="Write the smaller number first; it must be at least 1.",
    )


def _is_composer(stated: Stated[Launch]) -> bool:
    return stated.launch.launcher == "composer"


def _required_by_composer(job: Job, scope: Scope) -> list[Claim]:
    return [claim for claim in job.requirement_claims("world_size", scope) if claim.source == "composer"]


@rule(
    "LCH007",
    "composer-world-size-refused",
    severity=Severity.ERROR,
    profile="default",
    otherwise="no composer launch sets both its world size and its number of processes",
    each=launches_with(_required_by_composer, stated_by("composer", "processes_per_node"), where=_is_composer),
)
def composer_world_size_refused(question: LaunchQuestion) -> Verdict | None:
    """Composer's launcher is given a world size that does not match its number of processes.

    What it checks: `--world_size` of `composer` is at least `--nproc`; and a multiple of it, unless the line gives the
    node both `--node_rank` and `--base_rank`.

    Why it matters: The launcher stops with ValueError on every node, after the job has waited for all of them.

    Example: `composer --nproc 8 --world_size 12 --node_rank 0 train.py`.

    Fix: Set it to nodes times processes per node. For nodes of different sizes, give each node both ranks.

    Known limits: BASE_RANK may come from the platform, so sizes that merely do not divide are a warning.
    """
    world_sizes, processes = question.of
    sizes, counts = numbers(job_value(world_sizes)), numbers(job_value(processes))
    is_too_small = bool(sizes and counts) and max(sizes) < min(counts)
    is_uneven = bool(sizes and counts) and min(counts) > 0 and all(t % s for t in sizes for s in counts)
    job, launch = question.of.job, question.of.launch
    has_both_ranks = job.setting("base_rank", launch.scope) and job.setting("node_rank", launch.scope)
    if not is_too_small and (not is_uneven or has_both_ranks):
        return None
    fault = "is less than" if is_too_small else "is not a multiple of"
    return failed(
        question.subject,
        f"{quoted(world_sizes[0])} {fault} {placed(processes[0])}: Composer stops with ValueError.",
        at=world_sizes[0],
        also=((processes[0], "processes of this node"),),
        remedy="Set it to the number of nodes times the processes on each node"
        + ("." if is_too_small else "; for nodes of different sizes, give both `--node_rank` and `--base_rank`."),
        severity=None if is_too_small else Severity.WARNING,
    )


_BATCH_QUANTITIES = {
    "given_batch_size": "the batch size",
    "micro_batch_size_per_gpu": "the batch size of a rank",
    "train_batch_size": "the global batch size",
    "gradient_accumulation_steps": "the gradient accumulation steps",
}
#: Commands that start their command on another host.
_REMOTE_WRAPPERS = frozenset(
    {"sbatch", "qsub", "bsub", "ssh", "pdsh", "clush", "srun", "mpirun", "horovodrun", "kubectl"}
)


@rule(
    "LCH010",
    "rank-started-twice",
    severity=Severity.ERROR,
    otherwise="no two processes with a rank run at the same time",
)
def rank_started_twice(job: Job) -> Iterator[Verdict]:
    """Two processes of one job that run at the same time have the same rank, or different world sizes.

    What it checks: Starts of one program in the background of one script, or from a separate script each, give each
    process its own rank (RANK, or the program's `--rank`) and the same number of ranks, and every rank is below it. If
    the program reads its number from its own variable or option (`current_id` of UserDefinedRoleMaker, `rank` of
    init_process_group), this number differs among the processes of one group that a script starts.

    Why it matters: Both processes register at the store with the same rank. One of them stops, or all wait for the
    missing rank until the rendezvous times out.

    Example: `RANK=0 python train.py &` twice, with WORLD_SIZE=2.

    Fix: Give each process its own rank, from 0, and the same world size.

    Known limits: Starts that run one after the other are separate runs. A rank may be started in another file, so a
    missing rank is not reported.
    """
    for processes in processes_of_ranks(job):
        yield _sizes_verdict(processes)
        yield _ranks_verdict(processes)
    yield from _number_verdicts(job)


def _number_verdicts(job: Job) -> Iterator[Verdict]:
    """Judge whether processes that a script starts for one group have different ranks."""
    starts_by_group: dict[tuple[str, Value], list[tuple[Launch, Claim]]] = {}
    for launch in job.launches:
        for claim in job.about("taken_number", launch.scope):
            starts_by_group.setdefault((launch.program, claim.because[0].value), []).append((launch, claim))
    for starts in starts_by_group.values():
        if all(joined(texts(claim.value)) in _given_numbers(job, launch) for launch, claim in starts):
            # `_ranks_verdict` judges the numbers that the script gives.
            continue
        launch_by_number: dict[Value, Launch] = {}
        subject = f"{starts[0][0].id}: number of the process"
        for launch, claim in starts:
            if claim.value in launch_by_number:
                yield _same_number_finding(subject, starts, claim, (launch_by_number[claim.value], launch))
                break
            launch_by_number[claim.value] = launch
        else:
            yield passed(subject)


def _given_numbers(job: Job, launch: Launch) -> list[str]:
    values = (job.value(quantity, launch.scope) for quantity in ("rank", "given_rank", "ps_index"))
    return [joined(numbers(value)) for value in values]


def _same_number_finding(
    subject: str, starts: Sequence[tuple[Launch, Claim]], claim: Claim, launches: tuple[Launch, Launch]
) -> Verdict:
    count = sum(other.value == claim.value for _, other in starts)
    not_set = items(claim.because[1].value)
    cause = (
        f", because the script does not set {' or '.join(f'`{name}`' for name in not_set)} for each" if not_set else ""
    )
    return failed(
        subject,
        f"{quoted(claim)} is {joined(texts(claim.value))} in {count} processes of one group that run at the same"
        f" time{cause}.",
        at=claim,
        also=tuple((launch, "starts one of them") for launch in launches),
        remedy="Give each process its own number, from 0, in the variable or option that the program reads.",
        waits_at="rendezvous",
    )


def _sizes_verdict(processes: Sequence[RankedProcess]) -> Verdict:
    subject = f"{processes[0].launch.id} and {len(processes) - 1} more: number of ranks"
    difference = first_difference(subject, [(p.launch, p.size) for p in processes], "the number of ranks")
    if difference is None or isinstance(difference, Verdict):
        return difference or passed(subject)
    _, odd, common_launch, common = difference
    return failed(
        subject,
        f"{quoted(odd[0])} here and {quoted(common[0])} in {where(common[0])} give different numbers of ranks for "
        "one job: the processes wait for different numbers of peers.",
        at=odd[0],
        also=((argument_of(common[0]) or common[0], f"the process started by {common_launch.id}"),),
        remedy="Give every process the same number of ranks.",
        waits_at="rendezvous",
    )


def _ranks_verdict(processes: Sequence[RankedProcess]) -> Verdict:
    subject = f"{processes[0].launch.id} and {len(processes) - 1} more"
    if undecided_verdict := undecided(
        subject, [claim for process in processes for claim in (*process.rank, *process.size)]
    ):
        return undecided_verdict
    claim_by_rank: dict[int, Claim] = {}
    for process in processes:
        claim, size = process.rank[0], max(numbers(job_value(process.size)), default=0)
        rank = min(numbers(claim.value), default=-1)
        if rank in claim_by_rank:
            first = claim_by_rank[rank]
            elsewhere = where(first) if where(first) != where(claim) else ""
            return failed(
                subject,
                f"{quoted(claim)} is also the rank of the process of {elsewhere}, which runs at the same time."
                if elsewhere
                else f"{quoted(claim)} gives rank {rank} to two processes that run at the same time.",
                at=claim,
                also=((argument_of(first) or first, f"rank {rank} already"),),
                remedy=f"Give each of the {len(processes)} processes its own rank, from 0 to {size - 1}.",
                waits_at="rendezvous",
            )
        if rank >= size > 0:
            return failed(
                subject,
                f"{quoted(claim)} is not a rank of {quoted(process.size[0])}: ranks are 0 to {size - 1}.",
                at=claim,
                also=(process.size[0],),
                remedy=f"Use a rank from 0 to {size - 1}, each once.",
            )
        claim_by_rank[rank] = claim
    return passed(subject)


@rule(
    "LCH011",
    "batch-differs-between-starts",
    severity=Severity.WARNING,
    confidence=Confidence.HIGH,
    otherwise="no two launches of one job give a batch size",
)
def batch_differs_between_starts(job: Job) -> Iterator[Verdict]:
    """The starts of one job's nodes or ranks give them different batch sizes.

    What it checks: Launch lines of one program for different nodes, starts of one program with different ranks, and
    trainers of one parameter-server job give the same batch size and gradient accumulation.

    Why it matters: Ranks with smaller batches take more steps for the same data. The others finish first, and the
    remaining ones wait in a collective until it times out. Gradients are averaged with the wrong weights.

    Example: `ssh a bash run.sh 0 8 &` and `ssh b bash run.sh 1 16 &`, where the second argument is the batch size.

    Fix: Give all starts the same batch size, or set it once in the script that they run.

    Known limits: A program for GPUs of different sizes may use different batch sizes on purpose.
    """
    starts = [tuple(process.launch for process in processes) for processes in processes_of_ranks(job)]
    for group in (*node_groups(job), *starts, *paddle_peers(job)):
        for quantity, meaning in _BATCH_QUANTITIES.items():
            batches = [(launch, claims) for launch in group if (claims := job.setting(quantity, launch.scope))]
            if len(batches) < 2:
                continue
            yield _batches_verdict(f"{group[0].id} and {len(group) - 1} more: {meaning}", batches, meaning)


def _batches_verdict(subject: str, batches: Sequence[tuple[Launch, tuple[Claim, ...]]], meaning: str) -> Verdict:
    difference = first_difference(subject, batches, meaning)
    if difference is None or isinstance(difference, Verdict):
        return difference or passed(subject)
    _, odd, common_launch, common = difference
    return failed(
        subject,
        f"{quoted(odd[0])} here and {quoted(common[0])} in {where(common[0])} give different values for {meaning} of "
        "one job: the ranks run different numbers of steps, and some wait for ranks that have finished.",
        at=odd[0],
        also=((argument_of(common[0]) or common[0], f"started by {common_launch.id}"),),
        remedy=f"Give {meaning} the same value on every line that starts a node or rank.",
        waits_at="collective",
    )


@rule(
    "LCH012",
    "gpu-given-to-two-starts",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no two launches that name their GPUs run at the same time",
)
def gpu_given_to_two_starts(job: Job) -> Iterator[Verdict]:
    """Two launches that run at the same time on one host are given the same GPU.

    What it checks: Launches that one script starts in the background on its own host do not share a GPU in
    CUDA_VISIBLE_DEVICES.

    Why it matters: Both allocate memory on it: the second runs out of memory, or both are slow. Two ranks of one job on
    one GPU make NCCL stop with "Duplicate GPU detected".

    Example: `CUDA_VISIBLE_DEVICES=0,1 bash run.sh &` and `CUDA_VISIBLE_DEVICES=1,2 bash run.sh &`.

    Fix: Give each launch its own GPUs.

    Known limits: Launches on other hosts (ssh, srun) and launches one after the other are not compared, and neither are
    parameter servers of Paddle, which work on the CPU. Some programs share a GPU on purpose, such as small evaluations.
    """
    earlier: list[tuple[Launch, Claim]] = []
    for launch in job.launches:
        visible = job.setting("env.CUDA_VISIBLE_DEVICES", launch.scope)
        if not visible or not launch.concurrent or _REMOTE_WRAPPERS.intersection(launch.wrappers):
            continue
        if {text for claim in job.setting("ps_role", launch.scope) for text in texts(claim.value)} == {"PSERVER"}:
            # FLU025 judges whether a parameter server uses a GPU.
            continue
        for other, claim in earlier:
            if starting_file(other) != starting_file(launch) or is_same_line_again(other, launch):
                continue
            if waited_between(job, other, launch):
                yield passed(launch.id)
            else:
                undecided_verdict = undecided(launch.id, (visible[0], claim), launch)
                yield undecided_verdict or _devices_finding(launch, visible[0], claim)
        earlier.append((launch, visible[0]))


def _devices_finding(launch: Launch, claim: Claim, other: Claim) -> Verdict:
    shared = _listed_devices(claim) & _listed_devices(other)
    if not shared:
        return passed(launch.id)
    names = ", ".join(sorted(shared))
    return failed(
        launch.id,
        f"{quoted(claim)} gives this launch GPU {names}, which {quoted(other)} in {where(other)} gives to another"
        f" launch that runs at the same time.",
        at=claim,
        also=((other, f"GPU {names} already"),),
        remedy="Give each launch its own GPUs.",
    )


def _listed_devices(claim: Claim) -> frozenset[str]:
    """Return the devices that a claim about CUDA_VISIBLE_DEVICES certainly lists. "-1" and an empty entry name none."""
    lists = [{part.strip() for part in text.split(",")} - {"", "-1"} for text in texts(claim.value)]
    return frozenset(set.intersection(*lists)) if lists else frozenset()
