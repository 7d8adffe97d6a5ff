"""Launchers under Slurm: tasks per node, and the nodes that they run on."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Launch, Strength
from preflight.model.job.claim import job_value
from preflight.model.job.value import Symbol, numbers, symbols_in
from preflight.plugins.authoring import Verdict, failed, not_applicable, passed, rule, undecided, unknown
from preflight.plugins.claim_text import counted, joined, quoted, where, why_unresolved
from preflight.plugins.questions import LaunchQuestion, Stated, launches_with
from preflight_rules.launches import AGENT_LAUNCHERS, SCHEDULERS, certainly_one, certainly_several, on_first_node_only

#: Modules that start the ranks of their node, for `python -m`.
_LAUNCHER_MODULES = (
    "accelerate/commands",
    "deepspeed/launcher",
    "torch/distributed",
    "horovod/runner",
    "ray/scripts",
    "paddle/distributed",
    "bash",
    # Model servers: one process uses all GPUs of its node.
    "sglang",
    "vllm",
    "lmdeploy",
    "tritonserver",
)


@rule(
    "SLU001", "launcher-started-more-than-once-per-node", severity=Severity.ERROR, otherwise="srun starts no launcher"
)
def launcher_started_more_than_once_per_node(job: Job) -> Iterator[Verdict]:
    """A launcher that starts all ranks of a node is started several times on each node.

    What it checks: srun starts a launcher such as torchrun once per node: every setting of tasks per node is 1.

    Why it matters: With T tasks per node, each node gets T launchers and T times as many ranks as GPUs. The extra
    launchers wait to join the rendezvous until it times out, or two ranks share each GPU.

    Example: `#SBATCH --ntasks-per-node=8` with `srun torchrun --nproc_per_node=8 train.py`.

    Fix: `#SBATCH --ntasks-per-node=1` (or `srun --ntasks-per-node=1 torchrun ...`), or drop torchrun and let srun start
    the ranks.

    Known limits: One process per launcher (`--nproc_per_node=1`) with as many launchers as `--nnodes` is valid, if
    rare, and is not reported. Launchers inside a script that reads SLURM_LOCALID itself are not analysed.
    """
    for launch in job.launches:
        if launch.launcher not in AGENT_LAUNCHERS or "srun" not in launch.wrappers:
            continue
        tasks = job.setting("tasks_per_node", launch.scope)
        if not tasks:
            yield from _judge_task_total(job, launch)
            continue
        undecided_verdict = why_unresolved(tasks, launch)
        if undecided_verdict is not None:
            yield unknown(
                launch.id,
                f"tasks per node: {quoted(undecided_verdict[0])} is unknown: {undecided_verdict[1]}",
                at=tasks[0],
            )
        elif not certainly_several(job_value(tasks)) or _starts_one_rank(job, launch):
            yield passed(launch.id)
        else:
            yield _several_launchers_finding(job, launch, tasks[0], numbers(job_value(tasks)))


def _starts_one_rank(job: Job, launch: Launch) -> bool:
    processes = job.setting("processes_per_node", launch.scope)
    return bool(processes) and certainly_one(job_value(processes))


def _judge_task_total(job: Job, launch: Launch) -> Iterator[Verdict]:
    """Tasks per node from `--ntasks` and `--nodes`: `--ntasks=4 --nodes=2` means two."""
    tasks, nodes = job.setting("tasks", launch.scope), job.setting("nodes", launch.scope)
    if undecided_verdict := undecided(launch.id, (*tasks, *nodes), launch, quantity="tasks per node"):
        yield undecided_verdict
        return
    if not tasks or not nodes:
        yield unknown(launch.id, "the number of tasks that srun starts on each node is not given")
        return
    total, over = numbers(job_value(tasks)), numbers(job_value(nodes))
    if not total or not over or min(total) <= max(over) or _starts_one_rank(job, launch):
        yield passed(launch.id)
        return
    yield _several_launchers_finding(job, launch, tasks[0], (-(-min(total) // max(over)),))


def _several_launchers_finding(job: Job, launch: Launch, tasks: Claim, count: tuple[int, ...]) -> Verdict:
    processes = job.setting("processes_per_node", launch.scope)
    each = numbers(job_value(processes)) if processes else ()
    message = (
        f"srun starts {launch.launcher} {joined(count)} times on each node ({quoted(tasks)}, {where(tasks)}), but"
        f" {launch.launcher} starts all ranks of its node itself."
    )
    if len(each) == 1 and len(count) == 1:
        message += (
            f" Each node would get {count[0]} x {each[0]} = {counted(count[0] * each[0], 'rank')} where"
            f" {each[0]} {'is' if each[0] == 1 else 'are'} intended."
        )
    return failed(
        launch.id,
        message,
        at=tasks,
        also=((launch, "the launcher"), *((claim, "ranks of each launcher") for claim in processes)),
        remedy=f"Set `--ntasks-per-node=1`, or let srun start the script itself without {launch.launcher}.",
    )


def _is_task_of_srun(stated: Stated[Launch]) -> bool:
    program = stated.launch.program
    if stated.launch.launcher != "srun" or _is_launcher(program) or not program.endswith(".py"):
        return False
    # A step may prepare something before it starts a launcher on the same tasks, or start several programs.
    *_, tasks = stated
    theirs = {
        claim.span
        for other in stated.job.launches
        for claim in stated.job.setting("tasks_per_node", other.scope)
        if other.launcher in AGENT_LAUNCHERS or (other != stated.launch and claim.scope.launch)
    }
    return all(task.span not in theirs for task in tasks)


@rule(
    "SLU002",
    "one-task-for-several-gpus",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="srun starts no script on nodes with a known number of GPUs",
    each=launches_with("gpus_per_node", "nodes", also=("tasks_per_node",), where=_is_task_of_srun),
)
def one_task_for_several_gpus(question: LaunchQuestion) -> Verdict | None:
    """srun starts one task per node, although each node has several GPUs.

    What it checks: Where srun starts Python itself on several nodes, that tasks per node is not 1 while more than one
    GPU per node is granted.

    Why it matters: Each task is one rank. With one task per node only one GPU per node works, or the script starts its
    own ranks, whose ranks then differ from Slurm's.

    Example: `#SBATCH --nodes=2 --gres=gpu:4` and `srun python train.py`, without `--ntasks-per-node=4`.

    Fix: `#SBATCH --ntasks-per-node=<GPUs per node>`, or start the script through torchrun.

    Known limits: A script that drives all GPUs of its node from one process (model parallelism in one process, or its
    own spawn) is correct; therefore the finding is a warning of medium confidence.
    """
    gpus, nodes, tasks = question.of
    if not tasks:
        return unknown(question.subject, "the number of tasks that srun starts on each node is not given")
    if certainly_one(job_value(tasks)) and certainly_several(job_value(gpus)) and certainly_several(job_value(nodes)):
        count = numbers(job_value(gpus))
        return failed(
            question.subject,
            f"{quoted(gpus[0])} grants {joined(count)} GPUs on each node, but srun starts one task there"
            f" ({quoted(tasks[0])}), so one rank: {joined(n - 1 for n in count)} stay idle unless the"
            " script uses them itself.",
            at=question.of.launch,
            also=((gpus[0], "GPUs of each node"), (tasks[0], "tasks of each node")),
            remedy=f"Set `--ntasks-per-node={joined(count)}`, or start the script with torchrun.",
        )
    return None


@rule(
    "SLU003",
    "multi-node-launcher-on-first-node-only",
    severity=Severity.ERROR,
    otherwise="no launcher of a batch script sets the number of nodes that it runs on",
)
def multi_node_launcher_on_first_node_only(job: Job) -> Iterator[Verdict]:
    """A launcher for several nodes runs on the first node of the allocation only.

    What it checks: In a batch script for several nodes, that a launcher which must run on every node (`torchrun
    --nnodes=4`) is started by srun, mpirun, pdsh or ssh.

    Why it matters: Slurm runs a batch script only on the first node. The launcher there waits for the others until the
    rendezvous times out, while all nodes are held.

    Example: `#SBATCH --nodes=4` and `torchrun --nnodes=4 --nproc_per_node=8 train.py` with no srun before it.

    Fix: Put `srun --ntasks-per-node=1` before the launcher.

    Known limits: A launch for which the script has a node rank of its own (a loop over hosts with ssh) is not judged,
    nor one inside a function or script that another command may start on all nodes.
    """
    for launch in job.launches:
        alone = [c for c in job.setting("nodes", launch.scope) if on_first_node_only(c, launch)]
        stated = job.requiring("nodes", launch.scope)
        if launch.launcher not in AGENT_LAUNCHERS or not stated:
            continue
        if not alone:
            if "srun" in launch.wrappers:
                yield passed(launch.id)
            continue
        verdict = undecided(launch.id, (*alone, *stated), launch, quantity="nodes")
        if verdict is None and certainly_several(job_value(stated)):
            verdict = _first_node_verdict(job, launch, stated[0])
        yield verdict or passed(launch.id)


def _is_launcher(program: str) -> bool:
    """Whether a program is one of the modules, also by a path relative to the working directory."""
    framed = f"/{program.removesuffix('.py')}/"
    return any(f"/{module}/" in framed for module in _LAUNCHER_MODULES)


def _header_nodes(job: Job) -> tuple[Claim, ...]:
    """The nodes that the header of a batch script requests."""
    return tuple(c for c in job.setting("nodes") if c.source in SCHEDULERS)


def _is_own_task_rank(claim: Claim) -> bool:
    """Whether a rank is Slurm's own for this process, which is 0 in a batch script and starts no other node."""
    if claim.strength is Strength.DEFAULT:
        return True
    return bool(symbols_in(claim.value) & {Symbol.PROCESS_RANK, Symbol.NODE_RANK, Symbol.LOCAL_RANK})


def _first_node_verdict(job: Job, launch: Launch, stated: Claim) -> Verdict:
    # A rank in a configuration that all nodes share belongs to no node.
    own = [claim for claim in job.setting("node_rank", launch.scope) if claim.strength > Strength.CONFIG]
    if any(not _is_own_task_rank(claim) for claim in own):
        return unknown(
            launch.id,
            f"{launch.launcher} has a node rank: something else may start the other nodes",
            at=launch,
        )
    count, granted = joined(numbers(stated.value)), _header_nodes(job)
    name, starter = SCHEDULERS[granted[0].source if granted else "slurm"]
    return failed(
        launch.id,
        f"{quoted(stated)} makes {launch.launcher} wait for {count} nodes, but nothing starts it on the other nodes:"
        f" {name} runs a batch script on the first node of its allocation only.",
        at=launch,
        also=((stated, f"waits for {count}"), *((claim, "granted") for claim in granted)),
        remedy=f"Put `{starter}` before {launch.launcher}.",
        waits_at="rendezvous",
    )


@rule("SLU004", "allocated-nodes-never-used", severity=Severity.WARNING)
def allocated_nodes_never_used(job: Job) -> Iterator[Verdict]:
    """A batch script requests several nodes but starts everything on the first one.

    What it checks: In a batch script for several nodes, that at least one launch leaves the first node: through srun,
    mpirun, pdsh, ssh or a launcher that reaches other nodes itself.

    Why it matters: All other nodes are billed and blocked for others for the whole run, and do nothing.

    Example: `#SBATCH --nodes=4` and `torchrun --nproc_per_node=8 train.py` with no srun in the script.

    Fix: Put `srun --ntasks-per-node=1` before the launcher and give it `--nnodes`, or request one node.

    Known limits: A launcher that waits for several nodes is reported by SLU003. A program that spreads itself by other
    means (its own ssh, a cluster library) is not recognised.
    """
    granted = _header_nodes(job)
    alone = [
        launch
        for launch in job.launches
        if any(on_first_node_only(c, launch) for c in job.setting("nodes", launch.scope))
    ]
    if not granted or not job.launches:
        yield not_applicable(job.name, "no batch script requests a number of nodes")
        return
    if undecided_verdict := undecided(job.name, granted, quantity="nodes"):
        yield undecided_verdict
        return
    waiting = any(certainly_several(job_value(job.requiring("nodes", launch.scope))) for launch in alone)
    if len(alone) < len(job.launches) or waiting or not certainly_several(job_value(granted)):
        yield passed(job.name)
        return
    count = numbers(job_value(granted))
    yield failed(
        job.name,
        f"{quoted(granted[0])} requests {joined(count)} nodes, but everything the script launches runs on the first"
        f" one: {joined(n - 1 for n in count)} stay idle.",
        at=granted[0],
        also=tuple((launch, "runs on the first node") for launch in alone[:8]),
        remedy=f"Put `{SCHEDULERS[granted[0].source][1]}` before the launcher and give it the number of nodes, or"
        " request one node.",
    )
