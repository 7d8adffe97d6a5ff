"""Checks that a launcher forwards the job's variables, and that its user is the same account on every node."""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Claim, Job
from preflight.model.recording import Facts, Fleet
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, unknown
from preflight_checks.comparison import split
from preflight_checks.context.launcher_access import applying_links, first_node
from preflight_checks.context.node_environment import bare, plan_logins, set_by_job, unseen_bare
from preflight_checks.plans import all_of, combined, has_launches, multi_node
from preflight_checks.requirements import fold, known_text, nodes_share_machine

#: Variables whose absence on other nodes changes how ranks communicate or compute.
_RELEVANT_VARIABLES = re.compile(
    r"(NCCL|RCCL|GLOO|UCX|UCC|FI|TP|HOROVOD|TORCH|PYTORCH|CUDA|CUBLAS|OMP|MKL|PADDLE|FLAGS|DMLC|MASTER|WORLD|HF|TRANSFORMERS)_"
    r"|LD_LIBRARY_PATH$|LD_PRELOAD$|PYTHONPATH$|PYTHONHASHSEED$|WORLD_SIZE$|XLA_FLAGS$"
)


@check(
    "RMT003",
    "variables-not-handed-on",
    plan=combined(plan_logins, when=applying_links),
    cost="reads the environment and at most three small files, milliseconds",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("snowflakedb/ArcticTraining#316", "NVIDIA/nccl#626", "NVIDIA/nccl#260"),
)
def variables_not_handed_on(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Variables that the job's script exports reach the ranks that its launcher starts on other nodes.

    What it checks: for launchers that start ranks over ssh, each exported variable of a communication or computing
    library, compared with what the launcher forwards (including DeepSpeed's .deepspeed_env on the first node) and with
    the environment of a login without a terminal on each other node.

    Why it matters: only the ranks on the launcher's node see the setting. The others choose another interface,
    transport or number of threads, and the first collective hangs or is slow.

    Example: `export GLOO_SOCKET_IFNAME=eth0` and `deepspeed --hostfile hosts train.py`: DeepSpeed forwards only NCCL_,
    UCX_ and PYTHON variables.

    Fix: write the variable into .deepspeed_env, give mpirun `-x NAME`, or set it in ~/.bashrc of every node.

    Known limits: variables that the program sets itself are not seen. If the files give mpirun its hosts, MPI003
    reports this without any node.
    """
    applying = [link for link in applying_links(job, fleet) if link.exports is not None]
    first, _ = first_node(job, fleet, facts)
    if not applying or first is None:
        yield not_applicable("variables", "no launcher of the job starts ranks over ssh without forwarding variables")
        return
    blind = tuple(unseen_bare(facts, "variables"))
    yield from blind
    observed = bare(facts)
    others = {node: seen for node, seen in observed.items() if node != first.name}
    if not others:
        if not blind:
            yield unknown("variables", "the environment of no other node is known")
        return
    exported = {
        name for file in (observed[first.name].export_files if first.name in observed else []) for name in file.settings
    }
    lost: dict[tuple[str, tuple[str, ...]], list[Claim]] = {}
    for link in applying:
        for name, claims in set_by_job(job, known=False).items():
            own = [claim for claim in claims if claim.scope.covers(link.launch.scope) and claim.source == "environment"]
            handed = name in exported or name.startswith(link.exports or ())
            if (
                not own
                or handed
                or not _RELEVANT_VARIABLES.match(name)
                or known_text(job, f"env.{name}", link.launch.scope) == ""
            ):
                continue
            missing = tuple(node for node, seen in others.items() if not _is_held(name, seen.variables, seen.digests))
            if missing:
                lost.setdefault((link.by, missing), []).append(own[0])
    for (by, nodes), dropped in lost.items():
        names = [claim.quantity.removeprefix("env.") for claim in dropped]
        yield _not_forwarded_finding(by, nodes, names, dropped)
    if not lost:
        yield passed(f"variables on {len(others)} nodes")


def _is_held(name: str, *held: dict[str, str]) -> bool:
    return any(name in some for some in held)


def _not_forwarded_finding(by: str, nodes: tuple[str, ...], names: list[str], claims: list[Claim]) -> Verdict:
    how = {
        "mpirun": "add " + " ".join(f"-x {name}" for name in names[:4]) + " to the mpirun command",
        "pdsh": "set them in the command that pdsh runs",
        "clush": "set them in the command that clush runs",
        "ssh": "set them in the command that ssh runs",
    }.get(by, "write them into .deepspeed_env next to the start script, one NAME=value per line")
    return failed(
        f"{fold(names)} on {fold(nodes)}",
        f"{by} does not forward {fold(names)} , and a login without a terminal on {fold(nodes)} does not set "
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
    plan=combined(plan_logins, when=all_of(multi_node, has_launches)),
    cost="queries the node for its user name and id; milliseconds",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=(("Open MPI FAQ on rsh", "https://www.open-mpi.org/faq/?category=rsh"), "deepspeedai/DeepSpeed#1603"),
)
def accounts_differ(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The job's user is the same account with the same id on every node.

    What it checks: name and id of the user that runs preflight's processes, and so the job's, on each node.

    Why it matters: files on a shared file system belong to a user id. A rank with a different id cannot read the
    data or write the checkpoint, and launchers that pass no name log in as another user.

    Example: on node3 `alice` is 1003, on the others 1001.

    Fix: give the account the same id everywhere, or name the user in ~/.ssh/config.

    Known limits: a container may map ids.
    """
    if len(fleet.nodes) < 2 or not job.launches or nodes_share_machine(fleet):
        yield not_applicable("accounts", "the job has one node, or starts no ranks")
        return
    blind = tuple(unseen_bare(facts, "accounts"))
    yield from blind
    observed = bare(facts)
    accounts = split({node: f"{seen.user or '?'} ({seen.uid})" for node, seen in observed.items() if seen.uid >= 0})
    if accounts is None:
        if not blind:
            yield unknown("accounts", "the user is not known on any node")
    elif accounts.odd:
        node, account = accounts.first_odd
        yield failed(
            "accounts",
            f"the job's user differs: {accounts.description}",
            at=Evidence("account", account, accounts.common, "id", node),
            nodes=tuple(accounts.odd),
            remedy=f"Run the job under one account with the same id on every node; check {fold(accounts.odd)}.",
        )
    else:
        yield passed(f"account {accounts.common} on {len(accounts.agreeing)} nodes")
