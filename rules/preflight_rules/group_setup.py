"""What a script's process group needs of the job around it: an interface, and variables that exist."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Job
from preflight.judgement import Verdict, failed, mend, not_applicable, passed, reworded, rule, unknown
from preflight.outcome import Confidence, Severity
from preflight_rules.reading import (
    certainly_one,
    certainly_several,
    job_value,
    numbers,
    quoted,
    spoken,
    subjects,
    texts,
    undecided,
)
from preflight_rules.script_reading import nodes_of, stated
from preflight_rules.tables import mistaken_slurm_variables, slurm_variables
from preflight_rules.variables import nearest

_INTERFACE = "env.GLOO_SOCKET_IFNAME"


@rule(
    "PGR001",
    "gloo-without-interface",
    severity=Severity.WARNING,
    confidence=Confidence.LOW,
    evidence=(
        "meta-pytorch/data#1142",
        "https://docs.pytorch.org/docs/stable/distributed.html#common-environment-variables",
    ),
)
def gloo_without_interface(job: Job) -> Iterator[Verdict]:
    """Gloo meets over several nodes, and nothing says over which interface.

    What it checks:
        Where a script asks for the gloo back end and its ranks run on several nodes, GLOO_SOCKET_IFNAME is set.

    Why it matters:
        Gloo listens at the address that the node's own host name resolves to. Many images resolve it to 127.0.1.1 in
        /etc/hosts: each rank then tells the others to connect to themselves, "Connection refused".

    Example:
        `dist.init_process_group("gloo")` and `torchrun --nnodes=2 ...`.

    Fix:
        `export GLOO_SOCKET_IFNAME=eth0`, with the interface that reaches the other nodes.

    Known limits:
        Where host names resolve to routable addresses nothing is wrong, which files do not tell; `preflight check`
        looks. A back end that is gloo in one branch only is not judged.

    Evidence:
        meta-pytorch/data#1142; torch.distributed documentation, choosing the network interface.
    """
    met = False
    for subject, scope, launch in subjects(job):
        asked = [claim for claim in job.setting("backend", scope) if claim.source == "python"]
        if not asked or launch is None:
            continue
        met = True
        open_end = undecided(subject, asked, launch)
        nodes = nodes_of(job, launch)
        if open_end is not None:
            yield open_end
        elif set(texts(job_value(asked))) != {"gloo"} or certainly_one(nodes) or job.about(_INTERFACE, scope):
            yield passed(subject)
        elif not certainly_several(nodes):
            yield unknown(subject, "it cannot be told whether gloo has to reach another node", at=asked[0])
        else:
            yield failed(
                subject,
                f"{quoted(asked[0])} on {spoken(numbers(nodes))} nodes, and GLOO_SOCKET_IFNAME is not set: gloo takes"
                " the address of the node's own host name, which many images resolve to 127.0.1.1.",
                at=asked[0],
                also=((launch, f"{spoken(numbers(nodes))} nodes"),),
                remedy="Set GLOO_SOCKET_IFNAME to the interface that reaches the other nodes, or make sure that every"
                " host name resolves to its address in the cluster.",
            )
    if not met:
        yield not_applicable(job.name, "no launch starts a script that names its back end")


@rule(
    "PGR002",
    "scheduler-variable-does-not-exist",
    severity=Severity.WARNING,
    fix="unsafe",
    evidence=("tunib-ai/oslo#150", "https://slurm.schedmd.com/srun.html"),
)
def scheduler_variable_does_not_exist(job: Job) -> Iterator[Verdict]:
    """A script reads a variable of Slurm that Slurm does not set.

    What it checks:
        Names with the prefix SLURM_ that a script or batch script reads and does not set itself are among those Slurm
        sets, or not near any of them.

    Why it matters:
        `os.environ[...]` stops with KeyError; with a default, or in a shell, the job goes on with a wrong number of
        nodes or ranks.

    Example:
        `int(os.environ["SLURM_JOB_NUMNODES"])`; the variable is SLURM_JOB_NUM_NODES.

    Fix:
        Take the name that the finding gives.

    Known limits:
        A name that is near none of Slurm's may be one of the site's, and is not judged.

    Evidence:
        tunib-ai/oslo#150; srun documentation, output environment variables.
    """
    met = False
    for subject, read in stated(job, "variable_read"):
        name = next(iter(texts(read.value)), "")
        if not name.startswith("SLURM_"):
            continue
        met = True
        base = name.partition("_HET_GROUP_")[0]
        if base in slurm_variables():
            yield passed(subject)
            continue
        meant = mistaken_slurm_variables().get(name) or nearest(name, slurm_variables())
        if job.about(f"env.{name}"):
            yield passed(subject)
        elif meant is None:
            yield unknown(subject, f"{name} is in no table of Slurm's variables; it may be the site's own", at=read)
        else:
            yield failed(
                subject,
                f"{quoted(read)}: Slurm sets no {name}; {meant} is probably meant.",
                at=read,
                remedy=f"Read {meant}{_meaning(meant)}.",
                fix=mend(f"read {meant}", reworded(read, name, meant), safe=False),
            )
    if not met:
        yield not_applicable(job.name, "no variable of Slurm is read")


_MEANINGS = {
    "SLURM_JOB_NUM_NODES": "the number of nodes of the job",
    "SLURM_NTASKS": "the number of tasks in all",
    "SLURM_PROCID": "the rank of the task",
    "SLURM_LOCALID": "the index of the task on its node",
    "SLURM_NODEID": "the index of the node",
    "SLURM_GPUS_ON_NODE": "the GPUs of this node",
    "SLURM_NTASKS_PER_NODE": "the tasks of each node, where --ntasks-per-node is given",
}


def _meaning(name: str) -> str:
    return f" ({_MEANINGS[name]})" if name in _MEANINGS else ""
