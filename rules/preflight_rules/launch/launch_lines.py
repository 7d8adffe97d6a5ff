"""Launch lines that start on the wrong nodes, or with wrong counts and ranks: launchers in launchers, Composer, elastic
ranges.
"""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Severity
from preflight.model.job import Claim, Job, Launch, Scope, Value
from preflight.model.job.claim import job_value
from preflight.model.job.value import is_expanded_in_script, numbers, texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided, unknown
from preflight.plugins.claim_text import joined, placed, quoted
from preflight.plugins.questions import LaunchQuestion, Stated, launches_with, stated_by
from preflight_rules.launches import AGENT_LAUNCHERS, certainly_one, certainly_several

_START_ALL_NODES = ("deepspeed", "colossalai")
_START_ON_EACH_NODE = ("srun", "mpirun", "pdsh", "clush")


@rule(
    "LCH006",
    "reaching-launcher-started-on-each-node",
    severity=Severity.ERROR,
    otherwise="no launcher that reaches other nodes is started by another launcher",
)
def reaching_launcher_started_on_each_node(job: Job) -> Iterator[Verdict]:
    """A launcher that starts processes on all nodes itself is started on each node.

    What it checks: `deepspeed` and `colossalai run` are not started several times by srun, mpirun or pdsh, unless
    options tell deepspeed that each node starts it (`--no_ssh`, `--node_rank`).

    Why it matters: Without a hostfile each copy trains alone on the GPUs of its own node, without an error. With a
    hostfile each copy logs in to all nodes and starts all ranks once more: ports and GPUs are taken several times.

    Example: `#SBATCH --nodes=2` and `srun deepspeed train.py`.

    Fix: Start it once, on the first node, with a hostfile; or use torchrun under srun.

    Known limits: How many tasks srun starts must be known.
    """
    for launch in job.launches:
        spread = next((name for name in launch.wrappers if name in _START_ON_EACH_NODE), None)
        if launch.launcher not in _START_ALL_NODES or spread is None:
            continue
        counts = _copies(job, launch)
        undecided_verdict = undecided(launch.id, counts[:1], launch)
        itself = job.setting("each_node_itself", launch.scope) or job.setting("node_rank", launch.scope)
        if itself or job.setting("single_node_step", launch.scope):
            yield passed(launch.id)
        elif undecided_verdict is not None:
            yield undecided_verdict
        elif not counts:
            yield passed(launch.id)
        else:
            yield failed(
                launch.id,
                f"{launch.launcher} starts processes on the other nodes itself, but {spread} starts it"
                f" {joined(numbers(job_value(counts[:1])))} times ({placed(counts[0])}): each copy is a"
                " separate launch.",
                at=launch,
                also=((counts[0], "copies"),),
                remedy=f"Start {launch.launcher} once, without {spread} and with a hostfile; or put torchrun"
                f" under {spread}.",
            )


def _copies(job: Job, launch: Launch) -> tuple[Claim, ...]:
    """The claims that state how often the launcher is started; empty for once or unknown."""
    open_ones: tuple[Claim, ...] = ()
    for name in ("tasks", "tasks_per_node", "nodes"):
        claims = tuple(c for c in job.setting(name, launch.scope) if c.source in ("slurm", "mpirun", "pdsh", "clush"))
        if claims and certainly_several(job_value(claims)):
            return claims
        if claims and not numbers(job_value(claims)):
            open_ones = open_ones or claims
        elif claims and name == "tasks":
            return ()
    return open_ones


_STARTERS = ("srun", "mpirun", "jsrun", "aprun")
#: A process gets its rank from these quantities of its arguments, or from these variables.
_RANK_QUANTITIES = ("rank", "local_rank")
_VARIABLES = ("env.RANK", "env.LOCAL_RANK", "env.SLURM_PROCID", "env.CUDA_VISIBLE_DEVICES", "env.PADDLE_TRAINER_ID")

_GPUS = ("gpus_per_node", "gpus_per_task")


@rule(
    "LCH004",
    "task-rank-expanded-too-early",
    severity=Severity.ERROR,
    otherwise="no program started as several tasks is given a rank",
)
def task_rank_expanded_too_early(job: Job) -> Iterator[Verdict]:
    """The batch script expands a rank variable itself, so all tasks get the same rank.

    What it checks: Where srun, mpirun, jsrun or aprun starts several tasks of a program, that RANK, LOCAL_RANK and
    CUDA_VISIBLE_DEVICES, and a rank among the program's arguments, are not made from SLURM_PROCID, SLURM_LOCALID,
    OMPI_COMM_WORLD_RANK and their like in the script itself.

    Why it matters: In the script these variables are 0, or not set at all. Every task then acts as rank 0: all wait for
    the others at the rendezvous, or all use the first GPU.

    Example: `export RANK=$SLURM_PROCID` above `srun python train.py`.

    Fix: Let a shell in the task expand it: `srun bash -c 'RANK=$SLURM_PROCID python train.py'`.

    Known limits: A program that reads SLURM_PROCID itself and ignores RANK is not known. RDV003 judges the node rank of
    a launcher.
    """
    for launch in job.launches:
        if not set(_STARTERS) & set(launch.wrappers) or launch.launcher in AGENT_LAUNCHERS:
            continue
        stated = [c for name in (*_RANK_QUANTITIES, *_VARIABLES) for c in job.setting(name, launch.scope)]
        if "srun" in launch.wrappers and any(job.setting(name, launch.scope) for name in _GPUS):
            # Slurm gives each task of a step with GPUs the list of these (gres_common.c, env_array_overwrite).
            stated = [claim for claim in stated if claim.quantity != "env.CUDA_VISIBLE_DEVICES"]
        if not stated:
            continue
        early = [claim for claim in stated if is_expanded_in_script(claim.value)]
        tasks, claims = _tasks(job, launch)
        script = next((name for name in (launch.program, *launch.wrappers) if name.endswith((".sh", ".bash"))), "")
        if not early or certainly_one(tasks):
            yield passed(launch.id)
        elif script:
            yield unknown(launch.id, f"{script} may set the rank again in each task", at=early[0])
        elif not certainly_several(tasks) or early[0].condition:
            yield unknown(launch.id, f"cannot determine how many tasks get {quoted(early[0])}", at=early[0])
        else:
            yield _finding(launch, early[0], joined(numbers(tasks)), claims)


def _tasks(job: Job, launch: Launch) -> tuple[Value, tuple[Claim, ...]]:
    for name in ("world_size", "tasks", "tasks_per_node"):
        claims = job.setting(name, launch.scope)
        if certainly_several(job_value(claims)):
            return job_value(claims), claims
    claims = job.setting("tasks", launch.scope)
    return job_value(claims), claims


def _finding(launch: Launch, rank: Claim, count: str, claims: tuple[Claim, ...]) -> Verdict:
    starter = next(name for name in launch.wrappers if name in _STARTERS)
    return failed(
        launch.id,
        f"{quoted(rank)} is expanded before {starter} starts the {count} tasks, when it is still 0 or empty: every "
        "task gets the same value.",
        at=rank,
        also=((launch, "started as several tasks"), *((claim, f"{count} tasks") for claim in claims[:1])),
        remedy=f"Let a shell in each task expand it: {starter} bash -c '...', with single quotes.",
    )


@rule("LCH005", "elastic-range-unusable", severity=Severity.ERROR, otherwise="no launch requests a range of nodes")
def elastic_range_unusable(job: Job) -> Iterator[Verdict]:
    """torchrun is given a node range that it rejects, or that its static rendezvous ignores.

    What it checks: In `--nnodes=MIN:MAX` the first number is at least 1 and not above the second; and where the two
    differ, the backend is one that lets nodes join and leave (c10d, etcd), not the static default.

    Why it matters: torchrun stops if the range is reversed. With the static backend the job always waits for MAX nodes,
    and ends when it loses one.

    Example: `torchrun --nnodes=1:4 --master_addr=$HEAD ...` without `--rdzv_backend=c10d`.

    Fix: `torchrun --nnodes=1:4 --rdzv_backend=c10d --rdzv_endpoint=$HEAD:29400 --max_restarts=3 ...`.

    Known limits: Whether the program can go on with another number of ranks is not judged. The second case is a
    warning.
    """
    for launch in job.launches:
        if launch.launcher not in ("torchrun", "torch.distributed.launch"):
            continue
        ranges = [c for c in job.about("min_nodes", launch.scope) if c.scope.launch == launch.id]
        nodes = [c for c in job.requiring("nodes", launch.scope) if c.scope.launch == launch.id]
        rejected = [c for c in job.about("rejected_node_range", launch.scope) if c.scope.launch == launch.id]
        if not ranges and not rejected:
            # `--nnodes=$LEAST:4`: the reader gives neither number.
            open_range = undecided(launch.id, [c for c in nodes if ":" in c.spelling.partition("nnodes")[2]], launch)
            if open_range is not None:
                yield open_range
            continue
        if rejected:
            yield _refused(launch, rejected[0])
            continue
        backend = job.setting("rendezvous_backend", launch.scope)
        verdict = undecided(launch.id, (*backend, *ranges, *nodes), launch)
        found = texts(job_value(backend))
        if verdict is None and found == ("static",) and len(numbers(job_value(nodes))) > 1:
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


def _refused(launch: Launch, claim: Claim) -> Verdict:
    return failed(
        launch.id,
        f"{quoted(claim)} is not a valid range of nodes: torchrun stops unless 0 < MIN <= MAX.",
        at=claim,
        remedy="Write the smaller number first; it must be at least 1.",
    )


def _is_composer(stated: Stated[Launch]) -> bool:
    return stated.launch.launcher == "composer"


def _required_by_composer(job: Job, scope: Scope) -> list[Claim]:
    return [claim for claim in job.requiring("world_size", scope) if claim.source == "composer"]


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

    Fix: Nodes times processes of a node. For nodes of different sizes give both ranks to each.

    Known limits: BASE_RANK may come from the platform: where the sizes only do not divide, it is a warning.
    """
    worlds, each = question.of
    total, some = numbers(job_value(worlds)), numbers(job_value(each))
    small = bool(total and some) and max(total) < min(some)
    uneven = bool(total and some) and min(some) > 0 and all(t % s for t in total for s in some)
    job, launch = question.of.job, question.of.launch
    both = job.setting("base_rank", launch.scope) and job.setting("node_rank", launch.scope)
    if not small and (not uneven or both):
        return None
    why = "is less than" if small else "is not a multiple of"
    return failed(
        question.subject,
        f"{quoted(worlds[0])} {why} {placed(each[0])}: composer stops with ValueError.",
        at=worlds[0],
        also=((each[0], "processes of this node"),),
        remedy="Set it to the number of nodes times the processes on each node"
        + ("." if small else "; for nodes of different sizes, give both `--node_rank` and `--base_rank`."),
        severity=None if small else Severity.WARNING,
    )
