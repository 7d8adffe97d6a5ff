"""The process group of a script: its backend, and the interfaces and environment variables that it needs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from preflight._util.usage_error import similar_names
from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Known, Launch, Unresolved
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, failed, make_fix, passed, replace_text, rule, undecided, unknown
from preflight.plugins.claim_text import joined, quoted
from preflight.plugins.questions import subjects
from preflight_rules.data_tables import scheduler_variables
from preflight_rules.launches import certainly_one, certainly_several
from preflight_rules.rendezvous.variables import nearest
from preflight_rules.scripts.script_facts import nodes_of, stated

#: Variables that choose a transport's interface; without them it uses the address of the node's host name.
_INTERFACES = {"gloo": "GLOO_SOCKET_IFNAME", "tensorpipe": "TP_SOCKET_IFNAME"}


@rule(
    "PGR001",
    "gloo-without-interface",
    severity=Severity.WARNING,
    confidence=Confidence.LOW,
    otherwise="no launch starts a script that names its backend",
)
def gloo_without_interface(job: Job) -> Iterator[Verdict]:
    """Gloo connects several nodes, and no variable chooses its interface.

    What it checks: If a script requests the gloo backend (or starts torch's RPC, or torchdata's reading service) and
    its ranks run on several nodes, GLOO_SOCKET_IFNAME (TP_SOCKET_IFNAME) is set.

    Why it matters: Gloo listens at the address that the node's own host name resolves to. Many images resolve it to
    127.0.1.1 in /etc/hosts: each rank then tells the others to connect to themselves, "Connection refused".

    Example: `dist.init_process_group("gloo")` and `torchrun --nnodes=2 ...`.

    Fix: `export GLOO_SOCKET_IFNAME=eth0`, with the interface that reaches the other nodes.

    Known limits: Host names that resolve to routable addresses are fine, which files do not show; `preflight check`
    checks it. A backend that is gloo in one branch only is not judged.
    """
    for subject, scope, launch in subjects(job):
        backends = [claim for claim in job.setting("backend", scope) if claim.source == "python"]
        named = list(job.about("host_name_transport", scope))
        if launch is None or not (backends or named):
            continue
        used = list(named) if named else _backend_arguments(launch, backends)
        transport = texts(job_value(used))
        variable = _INTERFACES.get(transport[0], "") if len(set(transport)) == 1 else ""
        nodes = nodes_of(job, launch)
        if undecided_verdict := undecided(subject, used, launch):
            yield undecided_verdict
        elif not variable or certainly_one(nodes) or job.about(f"env.{variable}", scope):
            yield passed(subject)
        elif not certainly_several(nodes):
            yield unknown(subject, f"cannot determine whether {transport[0]} has to reach another node", at=used[0])
        else:
            yield failed(
                subject,
                f"{quoted(used[0])} uses {transport[0]} on {joined(numbers(nodes))} nodes, and {variable} is not set:"
                " it uses the address of the node's own host name, which many images resolve to 127.0.1.1.",
                at=used[0],
                also=((launch, f"{joined(numbers(nodes))} nodes"),),
                remedy=f"Set {variable} to the interface that reaches the other nodes, or make sure that every host"
                " name resolves to its address in the cluster.",
            )


def _backend_arguments(launch: Launch, backends: Sequence[Claim]) -> list[Claim]:
    """The backend from the launch's arguments, where the script takes it from them."""
    words = launch.arguments
    return [_from_line(words, claim) if isinstance(claim.value, Unresolved) else claim for claim in backends]


def _from_line(words: Sequence[str | None], claim: Claim) -> Claim:
    """The value of `args.backend`, given on the launch line as `--backend gloo`."""
    option = re.search(r"\bargs\.(\w+)", claim.spelling)
    if option is None:
        return claim
    for index, word in enumerate(words):
        name, equals, value = (word or "").partition("=")
        if name.startswith("--") and name[2:].replace("-", "_") == option.group(1):
            given = value if equals else next(iter(words[index + 1 : index + 2]), None)
            return replace(claim, value=Known(given.lower())) if given else claim
    return claim


@rule(
    "PGR002",
    "scheduler-variable-does-not-exist",
    severity=Severity.WARNING,
    fix="unsafe",
    otherwise="no variable of a scheduler is read",
)
def scheduler_variable_does_not_exist(job: Job) -> Iterator[Verdict]:
    """A script reads a variable with Slurm's or Open MPI's prefix that neither of them sets.

    What it checks: Names with the prefix SLURM_ or OMPI_ that a script or batch script reads and does not set itself
    are among those that Slurm or Open MPI sets, or resemble none of them.

    Why it matters: `os.environ[...]` stops with KeyError; with a default, or in a shell, the job continues with a wrong
    number of nodes or ranks.

    Example: `int(os.environ["SLURM_JOB_NUMNODES"])`; the variable is SLURM_JOB_NUM_NODES.

    Fix: Use the name that the finding gives.

    Known limits: A name that resembles none of theirs may be the site's own and is not judged.
    """
    for subject, read in stated(job, "variable_read"):
        name = next(iter(texts(read.value)), "")
        family = next((family for family in scheduler_variables() if name.startswith(family.prefix)), None)
        if family is None:
            continue
        if name.partition("_HET_GROUP_")[0] in family.names:
            yield passed(subject)
            continue
        meant = family.mistaken.get(name) or nearest(name, family.names)
        if job.about(f"env.{name}"):
            yield passed(subject)
        elif meant is None:
            yield unknown(subject, f"{name} is not a known variable of {family.of}; it may be the site's own", at=read)
        else:
            yield failed(
                subject,
                f"{quoted(read)}: {family.of} sets no {name}; {meant} is probably meant.",
                at=read,
                remedy=f"Read {meant}{_meaning(meant)}.",
                fix=make_fix(f"read {meant}", replace_text(read, name, meant), safe=False),
            )


_MEANINGS = {
    "SLURM_JOB_NUM_NODES": "the number of nodes of the job",
    "SLURM_NTASKS": "the total number of tasks",
    "SLURM_PROCID": "the rank of the task",
    "SLURM_LOCALID": "the index of the task on its node",
    "SLURM_NODEID": "the index of the node",
    "SLURM_GPUS_ON_NODE": "the GPUs of this node",
    "SLURM_NTASKS_PER_NODE": "the tasks per node, if --ntasks-per-node is set",
}


def _meaning(name: str) -> str:
    return f" ({_MEANINGS[name]})" if name in _MEANINGS else ""


#: Wrong names for variables of torch's `env://` rendezvous (documentation of torch.distributed,
#: environment variable initialization; torch 2.9).
_RENDEZVOUS = {
    "MASTER_ADDRESS": "MASTER_ADDR",
    "MASTER_ADRESS": "MASTER_ADDR",
    "MASTER_ADRR": "MASTER_ADDR",
    "MASTER_ADD": "MASTER_ADDR",
    "MASTER_IP": "MASTER_ADDR",
    "MASTER_HOST": "MASTER_ADDR",
    "MASTER_HOSTNAME": "MASTER_ADDR",
    "MASTERADDR": "MASTER_ADDR",
    "MASTERPORT": "MASTER_PORT",
    "MASTER_PROT": "MASTER_PORT",
    "WORLDSIZE": "WORLD_SIZE",
    "WORD_SIZE": "WORLD_SIZE",
    "WORLD_SIZES": "WORLD_SIZE",
    "LOCALRANK": "LOCAL_RANK",
}


@rule(
    "PGR003",
    "rendezvous-variable-misnamed",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no script sets a variable like those of torch's rendezvous",
)
def rendezvous_variable_misnamed(job: Job) -> Iterator[Verdict]:
    """A script sets a variable of torch's rendezvous under a name that torch does not read.

    What it checks: A script that starts a process group sets MASTER_ADDR, MASTER_PORT, WORLD_SIZE and LOCAL_RANK by
    these names.

    Why it matters: torch stops with "environment variable MASTER_ADDR expected, but not set", or the ranks meet at the
    address in a variable of another program.

    Example: `os.environ["MASTER_ADDRESS"] = "10.0.0.1"` and `init_process_group(init_method="env://")`.

    Fix: Use the name that the finding gives.

    Known limits: If the right variable is set as well, or by a launcher, the other is treated as the script's own.
    """
    for wrong, meant in _RENDEZVOUS.items():
        for subject, named in stated(job, f"env.{wrong}"):
            if named.source != "python" or not job.about("backend"):
                continue
            if job.about(f"env.{meant}") or job.about(meant.lower()):
                yield passed(subject)
            else:
                yield undecided(subject, (named,)) or failed(
                    subject,
                    f"{quoted(named)}: torch does not read {wrong}; {meant} is probably meant, and nothing sets it.",
                    at=named,
                    remedy=f"Write {meant}.",
                )


#: The backends of torch.distributed and of the device plugins that register one (torch 2.9).
_BACKENDS = ("nccl", "gloo", "mpi", "ucc", "xccl", "ccl", "hccl", "hcl", "cncl", "eccl", "mccl", "smddp", "fake")
#: Backends of the C++ library that torch 1.0 replaced.
_REMOVED = ("tcp",)


@rule(
    "PGR006", "process-group-backend-refused", severity=Severity.WARNING, otherwise="no script creates a process group"
)
def process_group_backend_refused(job: Job) -> Iterator[Verdict]:
    """A script creates its process group with a backend that torch does not have.

    What it checks: The backend that a script passes to `init_process_group` is not `tcp`, which torch removed in 1.0,
    and is not a misspelling of a known backend.

    Why it matters: Every rank stops with `ValueError` as soon as the script starts, after the job has waited in the
    queue for all of its nodes.

    Example: `dist.init_process_group("tcp")`, or `dist.init_process_group("ncll")`.

    Fix: `nccl` for GPUs, `gloo` for CPUs.

    Known limits: A backend that a plugin registers under a name unlike those that torch knows is not reported.
    """
    claims = [claim for claim in job.about("backend") if claim.source == "python"]
    for claim in claims:
        if isinstance(claim.value, Unresolved):
            yield unknown(claim.span.path, f"the backend {quoted(claim)} is unknown: {claim.value.why}", at=claim)
            continue
        yield next((_refused(claim, name) for name in _names(claim) if _replacements(name)), passed(claim.span.path))


def _names(claim: Claim) -> list[str]:
    """The backends in `nccl` or in `cpu:gloo,cuda:nccl`."""
    return [part.rpartition(":")[2].strip().lower() for text in texts(claim.value) for part in text.split(",")]


def _replacements(name: str) -> tuple[str, ...]:
    """Backends to use instead of one that torch rejects; empty for a backend that it may accept."""
    if name in _REMOVED:
        return ("gloo", "nccl")
    return () if name in _BACKENDS else tuple(similar_names(name, ("nccl", "gloo"), cutoff=0.75))


def _refused(claim: Claim, name: str) -> Verdict:
    meant = " or ".join(_replacements(name))
    why = "which torch removed in 1.0" if name in _REMOVED else "which torch does not have"
    return failed(
        claim.span.path,
        f"{quoted(claim)} requests the backend `{name}`, {why}: every rank stops with ValueError.",
        at=claim,
        remedy=f"Use {meant}.",
    )
