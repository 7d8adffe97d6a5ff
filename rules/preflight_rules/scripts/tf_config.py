"""TensorFlow clusters in TF_CONFIG: roles, addresses and the process's own task."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from preflight.model.findings import Severity
from preflight.model.job import Claim, Job, Unresolved, is_whole_number
from preflight.plugins.authoring import Verdict, failed, passed, rule, unknown
from preflight.plugins.claim_text import quoted
from preflight.plugins.questions import subjects

#: Roles that a strategy waits for; the evaluator opens no server.
_SERVING = frozenset(("chief", "master", "worker", "ps"))
_ROLES = _SERVING | {"evaluator"}
_MAX_LENGTH = 200_000


@dataclass(frozen=True, slots=True)
class _Cluster:
    """One TF_CONFIG: addresses by role (None if unknown), and the process's own role and index."""

    claim: Claim
    roles: dict[str, list[str | None] | None]
    role: str | None
    index: int | None
    said: bool


def _clusters(job: Job) -> Iterator[tuple[str, _Cluster | None, Claim]]:
    """Each literal TF_CONFIG, once."""
    seen: set[tuple[str, int, int]] = set()
    for subject, scope, _ in subjects(job):
        for claim in (*job.about("tf_config", scope), *job.about("env.TF_CONFIG", scope)):
            key = (claim.span.path, claim.span.line, claim.span.column)
            if key in seen or (claim.quantity == "env.TF_CONFIG" and isinstance(claim.value, Unresolved)):
                continue
            seen.add(key)
            for value in claim.alternatives:
                yield subject, _read(claim, value), claim


def _read(claim: Claim, value: object) -> _Cluster | None:
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
        listed = hosts if isinstance(hosts, list) else None
        roles[str(name)] = None if listed is None else [each if isinstance(each, str) else None for each in listed]
    task = table.get("task")
    task = task if isinstance(task, dict) else {}
    index, role = task.get("index"), task.get("type")
    if isinstance(index, str) and is_whole_number(index) and len(index) < 9:
        index = int(index)
    known = index if isinstance(index, int) and not isinstance(index, bool) else None
    return _Cluster(claim, roles, role if isinstance(role, str) else None, known, bool(task))


@rule("TFP001", "evaluator-in-cluster", severity=Severity.ERROR, otherwise="no file contains a literal TF_CONFIG")
def evaluator_in_cluster(job: Job) -> Iterator[Verdict]:
    """TF_CONFIG lists the evaluator as a member of the cluster.

    What it checks: The `cluster` part of TF_CONFIG has chief, worker and ps; an evaluator appears only in its own
    `task`.

    Why it matters: The strategy connects to every address of the cluster before it starts. An evaluator opens no
    server, so all others wait for it forever. The evaluator itself connects to no other process, so what its own
    TF_CONFIG lists is harmless.

    Example: `{"cluster": {"chief": [...], "worker": [...], "ps": [...], "evaluator": ["host4:2222"]}, ...}`.

    Fix: Leave the evaluator out of `cluster`.

    Known limits: Only for a literal TF_CONFIG; operators that make it at run time leave the evaluator out themselves.
    """
    for subject, cluster, claim in _clusters(job):
        if cluster is None:
            yield unknown(subject, "TF_CONFIG is not a complete JSON value in the files", at=claim)
        elif "evaluator" in cluster.roles and cluster.role != "evaluator":
            yield failed(
                subject,
                'the cluster in TF_CONFIG lists an "evaluator", which opens no server: every process that connects to'
                " the cluster waits for it forever.",
                at=claim,
                remedy='Remove "evaluator" from "cluster"; the evaluator\'s own "task" is enough.',
            )
        else:
            yield passed(subject)


@rule("TFP002", "task-not-in-cluster", severity=Severity.ERROR, otherwise="no file contains a literal TF_CONFIG")
def task_not_in_cluster(job: Job) -> Iterator[Verdict]:
    """The task that TF_CONFIG gives a process does not exist in its cluster, or an address exists twice.

    What it checks: The role of `task` is one of the cluster (or evaluator), its index is below the number of addresses
    there, and no address is listed twice.

    Why it matters: The process stops with IndexError, or serves no address, and the others wait for it; of two tasks
    with one address the second cannot bind it.

    Example: Two workers and `"task": {"type": "worker", "index": 2}`.

    Fix: Count from 0 in each role.

    Known limits: An index known only at run time is not judged.
    """
    for subject, cluster, claim in _clusters(job):
        if cluster is None:
            yield unknown(subject, "TF_CONFIG is not a complete JSON value in the files", at=claim)
            continue
        fault = _fault(cluster)
        if fault:
            yield failed(
                subject, fault, at=claim, remedy="Give every task its own address, and number the tasks from 0."
            )
        elif cluster.said and cluster.role != "evaluator" and (cluster.role is None or cluster.index is None):
            yield unknown(subject, f"the task in {quoted(claim)[:60]} is known only at run time", at=claim)
        else:
            yield passed(subject)


def _fault(cluster: _Cluster) -> str:
    listed = [host for hosts in cluster.roles.values() for host in hosts or () if host]
    twice = sorted({host for host in listed if listed.count(host) > 1}) if len(listed) < 5000 else []
    if twice:
        return f"TF_CONFIG lists {twice[0]} twice: two tasks cannot listen on one address."
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
            f"TF_CONFIG makes this process {cluster.role} {cluster.index}, but its cluster lists {len(hosts)}"
            " of that role, numbered from 0."
        )
    return ""


@rule(
    "TFP003",
    "parameter-servers-missing",
    severity=Severity.ERROR,
    otherwise="no parameter-server strategy has a literal TF_CONFIG",
)
def parameter_servers_missing(job: Job) -> Iterator[Verdict]:
    """A parameter-server strategy gets a cluster without parameter servers, or without workers.

    What it checks: If a script creates a ParameterServerStrategy and contains TF_CONFIG as a literal, its cluster has
    `ps` and `worker`.

    Why it matters: The strategy stops with ValueError, because no process stores the variables, or none trains.

    Example: `tf.distribute.ParameterServerStrategy(resolver)` and `{"cluster": {"worker": [...]}, ...}`.

    Fix: List the servers under `ps`, or use MultiWorkerMirroredStrategy.

    Known limits: Only judged where strategy and TF_CONFIG are in files of one job.
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
