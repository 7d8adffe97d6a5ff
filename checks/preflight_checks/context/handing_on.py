"""What becomes of the job's variables and of its user on the nodes where a launcher starts ranks."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Claim, Job
from preflight.judgement import Verdict, check, failed, not_applicable, passed, unknown
from preflight.lazy.patterns import lazy_pattern
from preflight.outcome import Confidence, Evidence, Severity
from preflight.recording import Facts, Fleet
from preflight.request import Request
from preflight_checks.context.starting import applying_ways, first_node
from preflight_checks.context.surroundings import bare, requests, set_by_job, unseen_bare
from preflight_checks.demands import fold, known_text, stand_ins
from preflight_checks.majority import split
from preflight_checks.probes.environment import environment

#: Variables whose absence on other nodes changes how ranks communicate or compute.
_TRAVELLING = lazy_pattern(
    r"(NCCL|RCCL|GLOO|UCX|UCC|FI|TP|HOROVOD|TORCH|PYTORCH|CUDA|CUBLAS|OMP|MKL|PADDLE|FLAGS|DMLC|MASTER|WORLD|HF|TRANSFORMERS)_"
    r"|LD_LIBRARY_PATH$|LD_PRELOAD$|PYTHONPATH$|PYTHONHASHSEED$|WORLD_SIZE$|XLA_FLAGS$"
)


def _plan_variables(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    if applying_ways(job, fleet):
        yield from requests(job, fleet, context=False)


@check(
    "RMT003",
    "variables-not-handed-on",
    plan=_plan_variables,
    probes=(environment,),
    cost="reads the environment and at most three small files, milliseconds",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("snowflakedb/ArcticTraining#316", "NVIDIA/nccl#626", "NVIDIA/nccl#260"),
)
def variables_not_handed_on(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """What the job's script exports reaches the ranks that its launcher starts on other nodes.

    What it checks: for launchers that start ranks over ssh, each exported variable of a communication or computing
    library against what the launcher hands on (with DeepSpeed's .deepspeed_env of the first node), and against what a
    login without a terminal has on each other node by itself.

    Why it matters: only the ranks beside the launcher see the setting. The others choose another interface, transport
    or number of threads, and the first collective hangs or is slow.

    Example: `export GLOO_SOCKET_IFNAME=eth0` and `deepspeed --hostfile hosts train.py`: DeepSpeed hands on NCCL_, UCX_
    and PYTHON alone.

    Fix: write the variable into .deepspeed_env, give mpirun `-x NAME`, or set it in ~/.bashrc of every node.

    Known limits: what the program sets for itself is not seen; where mpirun is given its hosts in the files, MPI003
    says it without any node.

    Evidence: snowflakedb/ArcticTraining#316, NVIDIA/nccl#626, NVIDIA/nccl#260.
    """
    applying = [way for way in applying_ways(job, fleet) if way.exports is not None]
    first, _ = first_node(job, fleet, facts)
    if not applying or first is None:
        yield not_applicable("variables", "no launcher of the job starts ranks over ssh and leaves variables behind")
        return
    blind = tuple(unseen_bare(facts, "variables"))
    yield from blind
    have = bare(facts)
    others = {node: seen for node, seen in have.items() if node != first.name}
    if not others:
        if not blind:
            yield unknown("variables", "no other node told its environment")
        return
    exported = {
        name for file in (have[first.name].export_files if first.name in have else []) for name in file.settings
    }
    lost: dict[tuple[str, tuple[str, ...]], list[Claim]] = {}
    for way in applying:
        for name, claims in set_by_job(job, known=False).items():
            mine = [claim for claim in claims if claim.scope.covers(way.launch.scope) and claim.source == "environment"]
            handed = name in exported or name.startswith(way.exports or ())
            if (
                not mine
                or handed
                or not _TRAVELLING.match(name)
                or known_text(job, f"env.{name}", way.launch.scope) == ""
            ):
                continue
            lacking = tuple(node for node, seen in others.items() if not _has(name, seen.variables, seen.digests))
            if lacking:
                lost.setdefault((way.by, lacking), []).append(mine[0])
    for (by, nodes), dropped in lost.items():
        names = [claim.quantity.removeprefix("env.") for claim in dropped]
        yield _not_handed(by, nodes, names, dropped)
    if not lost:
        yield passed(f"variables on {len(others)} nodes")


def _has(name: str, *held: dict[str, str]) -> bool:
    return any(name in some for some in held)


def _not_handed(by: str, nodes: tuple[str, ...], names: list[str], claims: list[Claim]) -> Verdict:
    how = {
        "mpirun": "add " + " ".join(f"-x {name}" for name in names[:4]) + " to the line of mpirun",
        "pdsh": "set them in the command that pdsh runs",
        "clush": "set them in the command that clush runs",
        "ssh": "set them in the command that ssh runs",
    }.get(by, "write them into .deepspeed_env beside the start script, one NAME=value a line")
    return failed(
        f"{fold(names)} on {fold(nodes)}",
        f"{by} does not hand {fold(names)} on, and a login without a terminal on {fold(nodes)} does not set "
        f"{'it' if len(names) == 1 else 'them'}: ranks there run without what the job's script exports",
        at=claims[0],
        also=[
            *claims[1:4],
            Evidence("environment", "not set", names[0], f"ssh {nodes[0]} printenv {names[0]}", nodes[0]),
        ],
        nodes=nodes,
        remedy=f"{how[0].upper()}{how[1:]}.",
    )


@check(
    "RMT004",
    "accounts-differ",
    plan=lambda job, fleet, facts: _plan_accounts(job, fleet),
    probes=(environment,),
    cost="asks the node for the name and number of its own user, milliseconds",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("https://www.open-mpi.org/faq/?category=rsh", "deepspeedai/DeepSpeed#1603"),
)
def accounts_differ(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The job's user is the same account with the same number on every node.

    What it checks: name and number of the user that processes of preflight, and so of the job, run as on each node.

    Why it matters: files on a shared file system belong to the number. A rank under another one cannot read the data or
    write the checkpoint, and launchers that pass no name log in as somebody else.

    Example: on node3 `alice` is 1003, on the others 1001.

    Fix: give the account one number everywhere, or name the user in ~/.ssh/config.

    Known limits: a container may map numbers.

    Evidence: Open MPI FAQ on rsh; deepspeedai/DeepSpeed#1603.
    """
    if len(fleet.nodes) < 2 or not job.launches or stand_ins(fleet):
        yield not_applicable("accounts", "the job has one node, or starts no ranks")
        return
    blind = tuple(unseen_bare(facts, "accounts"))
    yield from blind
    have = bare(facts)
    accounts = split({node: f"{seen.user or '?'} ({seen.uid})" for node, seen in have.items() if seen.uid >= 0})
    if accounts is None:
        if not blind:
            yield unknown("accounts", "no node told its user")
    elif accounts.odd:
        node, account = accounts.first_odd
        yield failed(
            "accounts",
            f"the job's user differs: {accounts.spoken}",
            at=Evidence("account", account, accounts.common, "id", node),
            nodes=tuple(accounts.odd),
            remedy=f"Run the job as one account with one number; see {fold(accounts.odd)}.",
        )
    else:
        yield passed(f"account {accounts.common} on {len(accounts.agreeing)} nodes")


def _plan_accounts(job: Job, fleet: Fleet) -> Iterator[Request]:
    if len(fleet.nodes) > 1 and job.launches and not stand_ins(fleet):
        yield from requests(job, fleet, context=False)
