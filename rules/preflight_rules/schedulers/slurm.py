"""What Slurm starts, and what the thing it starts then starts itself."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Claim, Job, Launch, Strength
from preflight.job.symbols import Symbol, symbols_in
from preflight.judgement import Verdict, failed, not_applicable, passed, rule, unknown
from preflight.outcome import Confidence, Severity
from preflight_rules.reading import (
    AGENT_LAUNCHERS,
    SCHEDULERS,
    certainly_one,
    certainly_several,
    counted,
    job_value,
    numbers,
    on_first_node_only,
    quoted,
    spoken,
    undecided,
    where,
    why_unresolved,
)

#: Programs that start the ranks of their node themselves, as modules behind `python -m`.
_LAUNCHER_MODULES = (
    "accelerate/commands",
    "deepspeed/launcher",
    "torch/distributed",
    "horovod/runner",
    "ray/scripts",
    "paddle/distributed",
    "bash",
    # Servers of models: one process drives all GPUs of its node.
    "sglang",
    "vllm",
    "lmdeploy",
    "tritonserver",
)


@rule(
    "SLU001",
    "launcher-started-more-than-once-per-node",
    severity=Severity.ERROR,
    profile="gate",
    evidence=("interTwin-eu/itwinai#360", "pytorch/pytorch#67547", "Lightning-AI/pytorch-lightning#18950"),
)
def launcher_started_more_than_once_per_node(job: Job) -> Iterator[Verdict]:
    """A launcher that starts a node's ranks itself is started several times on each node.

    What it checks:
        That srun starts a launcher such as torchrun once per node: tasks per node is 1 wherever it stands.

    Why it matters:
        With T tasks per node, each node gets T launchers and T times as many ranks as GPUs. The extra launchers
        wait for a place in the rendezvous until it times out, or two ranks share each GPU.

    Example:
        `#SBATCH --ntasks-per-node=8` with `srun torchrun --nproc_per_node=8 train.py`.

    Fix:
        `#SBATCH --ntasks-per-node=1` (or `srun --ntasks-per-node=1 torchrun ...`), or drop torchrun and let srun
        start the ranks.

    Known limits:
        One process per launcher (`--nproc_per_node=1`) with as many launchers as `--nnodes` is a valid, if rare,
        arrangement and stays silent. Launchers inside a script that itself looks at SLURM_LOCALID are not
        understood.

    Evidence:
        interTwin-eu/itwinai#360, pytorch/pytorch#67547, Lightning-AI/pytorch-lightning#18950.
    """
    met = False
    for launch in job.launches:
        if launch.launcher not in AGENT_LAUNCHERS or "srun" not in launch.wrappers:
            continue
        met = True
        tasks = job.setting("tasks_per_node", launch.scope)
        if not tasks:
            yield from _by_total(job, launch)
            continue
        open_end = why_unresolved(tasks, launch)
        if open_end is not None:
            yield unknown(launch.id, f"tasks per node: {quoted(open_end[0])} is left open: {open_end[1]}", at=tasks[0])
        elif not certainly_several(job_value(tasks)) or _one_rank_each(job, launch):
            yield passed(launch.id)
        else:
            yield _several(job, launch, tasks[0], numbers(job_value(tasks)))
    if not met:
        yield not_applicable(job.name, "srun starts no launcher")


def _one_rank_each(job: Job, launch: Launch) -> bool:
    processes = job.setting("processes_per_node", launch.scope)
    return bool(processes) and certainly_one(job_value(processes))


def _by_total(job: Job, launch: Launch) -> Iterator[Verdict]:
    """`--ntasks=4 --nodes=2` says two tasks a node without saying so."""
    tasks, nodes = job.setting("tasks", launch.scope), job.setting("nodes", launch.scope)
    open_end = undecided(launch.id, (*tasks, *nodes), launch, what="tasks per node")
    if open_end is not None:
        yield open_end
        return
    if not tasks or not nodes:
        yield unknown(launch.id, "nothing says how many tasks srun starts on each node")
        return
    total, over = numbers(job_value(tasks)), numbers(job_value(nodes))
    if not total or not over or min(total) <= max(over) or _one_rank_each(job, launch):
        yield passed(launch.id)
        return
    yield _several(job, launch, tasks[0], (-(-min(total) // max(over)),))


def _several(job: Job, launch: Launch, tasks: Claim, count: tuple[int, ...]) -> Verdict:
    processes = job.setting("processes_per_node", launch.scope)
    each = numbers(job_value(processes)) if processes else ()
    message = (
        f"srun starts {launch.launcher} {spoken(count)} times on each node ({quoted(tasks)}, {where(tasks)}), but"
        f" {launch.launcher} starts all ranks of its node itself."
    )
    if len(each) == 1 and len(count) == 1:
        message += (
            f" Each node would get {count[0]} x {each[0]} = {counted(count[0] * each[0], 'rank')} where"
            f" {each[0]} {'is' if each[0] == 1 else 'are'} meant."
        )
    return failed(
        launch.id,
        message,
        at=tasks,
        also=((launch, "the launcher"), *((claim, "ranks of each launcher") for claim in processes)),
        remedy=f"Set `--ntasks-per-node=1`, or let srun start the script itself without {launch.launcher}.",
    )


@rule(
    "SLU002",
    "one-task-for-several-gpus",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("Lightning-AI/pytorch-lightning#4389", "Lightning-AI/pytorch-lightning#18950"),
)
def one_task_for_several_gpus(job: Job) -> Iterator[Verdict]:
    """srun starts the script once per node although each node holds several GPUs.

    What it checks:
        Where srun starts Python itself on several nodes, that tasks per node is not 1 while more than one GPU
        per node is granted.

    Why it matters:
        Each task is one rank. With one task per node only one GPU per node works, or the script starts ranks
        of its own that then disagree with Slurm about who they are.

    Example:
        `#SBATCH --nodes=2 --gres=gpu:4` and `srun python train.py`, without `--ntasks-per-node=4`.

    Fix:
        `#SBATCH --ntasks-per-node=<GPUs per node>`, or start the script through torchrun.

    Known limits:
        A script that drives all GPUs of its node from one process (model parallelism in one process, or its own
        spawn) is right as it is; this is why it is a warning of medium confidence.

    Evidence:
        Lightning-AI/pytorch-lightning#4389 and #18950.
    """
    met = False
    for launch in job.launches:
        if launch.launcher != "srun" or _is_launcher(launch.program):
            continue
        tasks = job.setting("tasks_per_node", launch.scope)
        gpus, nodes = job.setting("gpus_per_node", launch.scope), job.setting("nodes", launch.scope)
        if not gpus or not nodes:
            continue
        met = True
        open_end = undecided(launch.id, (*tasks, *gpus, *nodes), launch)
        if open_end is not None:
            yield open_end
        elif not tasks:
            yield unknown(launch.id, "nothing says how many tasks srun starts on each node")
        elif (
            certainly_one(job_value(tasks))
            and certainly_several(job_value(gpus))
            and certainly_several(job_value(nodes))
        ):
            count = numbers(job_value(gpus))
            yield failed(
                launch.id,
                f"{quoted(gpus[0])} grants {spoken(count)} GPUs on each node, but srun starts one task there"
                f" ({quoted(tasks[0])}), so one rank: {spoken(n - 1 for n in count)} stay idle unless the script"
                " drives them itself.",
                at=launch,
                also=((gpus[0], "GPUs of each node"), (tasks[0], "tasks of each node")),
                remedy=f"Set `--ntasks-per-node={spoken(count)}`, or start the script with torchrun.",
            )
        else:
            yield passed(launch.id)
    if not met:
        yield not_applicable(job.name, "srun starts no script on nodes with a known number of GPUs")


@rule(
    "SLU003",
    "multi-node-launcher-on-first-node-only",
    severity=Severity.ERROR,
    profile="gate",
    evidence=(
        "pytorch/pytorch#67547",
        "https://slurm.schedmd.com/sbatch.html",
        "huggingface/accelerate#2521",
    ),
)
def multi_node_launcher_on_first_node_only(job: Job) -> Iterator[Verdict]:
    """A launcher for several nodes runs on the first node of the allocation only.

    What it checks:
        In a batch script for several nodes, that a launcher which must run on every node (`torchrun --nnodes=4`)
        is started by srun, mpirun, pdsh or ssh.

    Why it matters:
        Slurm runs a batch script on the first node alone. The launcher there waits for the others until the
        rendezvous times out, while all nodes are held.

    Example:
        `#SBATCH --nodes=4` and `torchrun --nnodes=4 --nproc_per_node=8 train.py` with no srun before it.

    Fix:
        Put `srun --ntasks-per-node=1` before the launcher.

    Known limits:
        A launch for which the script has a node rank of its own (a loop over hosts with ssh) is not judged, nor
        one inside a function or script that another command may spread.

    Evidence:
        sbatch documentation (the script runs on the first allocated node); pytorch/pytorch#67547.
    """
    met = False
    for launch in job.launches:
        alone = [c for c in job.setting("nodes", launch.scope) if on_first_node_only(c, launch)]
        told = job.requiring("nodes", launch.scope)
        if launch.launcher not in AGENT_LAUNCHERS or not told:
            continue
        if not alone:
            if "srun" in launch.wrappers:
                met = True
                yield passed(launch.id)
            continue
        met = True
        open_end = undecided(launch.id, (*alone, *told), launch, what="nodes")
        if open_end is not None:
            yield open_end
        elif certainly_several(job_value(told)):
            yield _alone(job, launch, told[0])
        else:
            yield passed(launch.id)
    if not met:
        yield not_applicable(job.name, "no launcher of a batch script says over how many nodes it runs")


def _is_launcher(program: str) -> bool:
    """Whether a program is one of those modules; a relative one is given from the directory it is started in."""
    framed = f"/{program.removesuffix('.py')}/"
    return any(f"/{module}/" in framed for module in _LAUNCHER_MODULES)


def _granted(job: Job) -> tuple[Claim, ...]:
    """What the header of a batch script asks for."""
    return tuple(c for c in job.setting("nodes") if c.source in SCHEDULERS)


def _of_this_task(claim: Claim) -> bool:
    """Whether a rank is the one Slurm gives the process at hand: in a batch script that is 0, and starts nobody."""
    if claim.strength is Strength.DEFAULT:
        return True
    return bool(symbols_in(claim.value) & {Symbol.PROCESS_RANK, Symbol.NODE_RANK, Symbol.LOCAL_RANK})


def _alone(job: Job, launch: Launch, told: Claim) -> Verdict:
    # The rank in a configuration that all nodes share is nobody's own.
    own = [claim for claim in job.setting("node_rank", launch.scope) if claim.strength > Strength.CONFIG]
    if any(not _of_this_task(claim) for claim in own):
        return unknown(
            launch.id,
            f"{launch.launcher} is given a node rank: something else may start the others",
            at=launch,
        )
    count, granted = spoken(numbers(told.value)), _granted(job)
    name, starter = SCHEDULERS[granted[0].source if granted else "slurm"]
    return failed(
        launch.id,
        f"{quoted(told)} makes {launch.launcher} wait for {count} nodes, but nothing starts it on the others: {name}"
        " runs a batch script on the first node of its allocation only.",
        at=launch,
        also=((told, f"waits for {count}"), *((claim, "granted") for claim in granted)),
        remedy=f"Put `{starter}` before {launch.launcher}.",
        waits_at="rendezvous",
    )


@rule(
    "SLU004",
    "allocated-nodes-never-used",
    severity=Severity.WARNING,
    evidence=("https://slurm.schedmd.com/sbatch.html", "Lightning-AI/pytorch-lightning#18950"),
)
def allocated_nodes_never_used(job: Job) -> Iterator[Verdict]:
    """A batch script asks for several nodes and starts everything on the first one.

    What it checks:
        In a batch script for several nodes, that at least one launch leaves the first node: through srun, mpirun,
        pdsh, ssh or a launcher that reaches other nodes itself.

    Why it matters:
        All other nodes are billed and blocked for others for the whole run, and do nothing.

    Example:
        `#SBATCH --nodes=4` and `torchrun --nproc_per_node=8 train.py` with no srun in the script.

    Fix:
        Put `srun --ntasks-per-node=1` before the launcher and give it `--nnodes`, or ask for one node.

    Known limits:
        A launcher that is told to wait for several nodes is SLU003's case. A program that spreads itself by
        other means (its own ssh, a cluster library) is not recognised.

    Evidence:
        sbatch documentation (the script runs on the first allocated node); Lightning-AI/pytorch-lightning#18950.
    """
    granted = _granted(job)
    alone = [
        launch
        for launch in job.launches
        if any(on_first_node_only(c, launch) for c in job.setting("nodes", launch.scope))
    ]
    if not granted or not job.launches:
        yield not_applicable(job.name, "no batch script says how many nodes it asks for")
        return
    open_end = undecided(job.name, granted, what="nodes")
    if open_end is not None:
        yield open_end
        return
    waiting = any(certainly_several(job_value(job.requiring("nodes", launch.scope))) for launch in alone)
    if len(alone) < len(job.launches) or waiting or not certainly_several(job_value(granted)):
        yield passed(job.name)
        return
    count = numbers(job_value(granted))
    yield failed(
        job.name,
        f"{quoted(granted[0])} asks for {spoken(count)} nodes, but everything the script launches runs on the first"
        f" one: {spoken(n - 1 for n in count)} stay idle.",
        at=granted[0],
        also=tuple((launch, "runs on the first node") for launch in alone[:8]),
        remedy=f"Put `{SCHEDULERS[granted[0].source][1]}` before the launcher and tell it the number of nodes, or ask"
        " for one node.",
    )
