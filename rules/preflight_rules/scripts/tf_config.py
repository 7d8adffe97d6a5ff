"""TensorFlow clusters: what TF_CONFIG says about roles, addresses and the process's own place among them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from preflight.job import Claim, Job, Unresolved
from preflight.judgement import Verdict, failed, not_applicable, passed, rule, unknown
from preflight.lazy.dataclasses import dataclass
from preflight.outcome import Severity
from preflight_rules.reading import quoted, subjects

#: What a strategy waits for; the evaluator is never among it, because it opens no server.
_SERVING = frozenset(("chief", "master", "worker", "ps"))
_ROLES = _SERVING | {"evaluator"}
_LONGEST = 200_000


@dataclass(frozen=True, slots=True)
class _Cluster:
    """One TF_CONFIG: addresses by role (None where not known), and the process's own role and index."""

    claim: Claim
    roles: dict[str, list[str | None] | None]
    role: str | None
    index: int | None
    said: bool


def _clusters(job: Job) -> Iterator[tuple[str, _Cluster | None, Claim]]:
    """Each place that writes TF_CONFIG out, once."""
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
    if not isinstance(value, str) or len(value) > _LONGEST:
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
    if isinstance(index, str) and index.isdigit() and len(index) < 9:
        index = int(index)
    known = index if isinstance(index, int) and not isinstance(index, bool) else None
    return _Cluster(claim, roles, role if isinstance(role, str) else None, known, bool(task))


@rule(
    "TFP001",
    "evaluator-in-cluster",
    severity=Severity.ERROR,
    profile="gate",
    evidence=("tensorflow/tensorflow#46169", "tony-framework/TonY#506"),
)
def evaluator_in_cluster(job: Job) -> Iterator[Verdict]:
    """TF_CONFIG lists the evaluator among those that serve the cluster.

    What it checks:
        The `cluster` part of TF_CONFIG has chief, worker and ps; an evaluator stands in its own `task` alone.

    Why it matters:
        The strategy connects to every address of the cluster before it starts. An evaluator opens no server, so all
        others wait for it for ever.

    Example:
        `{"cluster": {"chief": [...], "worker": [...], "ps": [...], "evaluator": ["host4:2222"]}, ...}`.

    Fix:
        Leave the evaluator out of `cluster`.

    Known limits:
        Only where TF_CONFIG is written out; operators that make it at run time leave the evaluator out themselves.

    Evidence:
        tensorflow/tensorflow#46169, tony-framework/TonY#506.
    """
    met = False
    for subject, cluster, claim in _clusters(job):
        met = True
        if cluster is None:
            yield unknown(subject, "TF_CONFIG is no JSON that is known as a whole", at=claim)
        elif "evaluator" in cluster.roles:
            yield failed(
                subject,
                'the cluster in TF_CONFIG lists an "evaluator", which opens no server: whoever connects to the cluster'
                " waits for it for ever.",
                at=claim,
                remedy='Leave "evaluator" out of "cluster"; the evaluator\'s own "task" is enough.',
            )
        else:
            yield passed(subject)
    if not met:
        yield not_applicable(job.name, "no TF_CONFIG is written out")


@rule(
    "TFP002",
    "task-not-in-cluster",
    severity=Severity.ERROR,
    profile="gate",
    evidence=("tensorflow/tensorflow#46827", "https://www.tensorflow.org/guide/distributed_training#TF_CONFIG"),
)
def task_not_in_cluster(job: Job) -> Iterator[Verdict]:
    """The task that TF_CONFIG gives a process does not exist in its cluster, or an address exists twice.

    What it checks:
        The role of `task` is one of the cluster (or evaluator), its index is below the number of addresses there, and
        no address is listed twice.

    Why it matters:
        The process stops with IndexError, or binds nobody's address while the others wait; of two tasks with one
        address the second cannot bind it.

    Example:
        Two workers and `"task": {"type": "worker", "index": 2}`.

    Fix:
        Count from 0, in each role by itself.

    Known limits:
        An index that only run time knows is not judged.

    Evidence:
        tensorflow/tensorflow#46827; TensorFlow guide, TF_CONFIG.
    """
    met = False
    for subject, cluster, claim in _clusters(job):
        met = True
        if cluster is None:
            yield unknown(subject, "TF_CONFIG is no JSON that is known as a whole", at=claim)
            continue
        fault = _fault(cluster)
        if fault:
            yield failed(subject, fault, at=claim, remedy="Give every task one address, and count indices from 0.")
        elif cluster.said and cluster.role != "evaluator" and (cluster.role is None or cluster.index is None):
            yield unknown(subject, f"the task in {quoted(claim)[:60]} is known at run time only", at=claim)
        else:
            yield passed(subject)
    if not met:
        yield not_applicable(job.name, "no TF_CONFIG is written out")


def _fault(cluster: _Cluster) -> str:
    listed = [host for hosts in cluster.roles.values() for host in hosts or () if host]
    twice = sorted({host for host in listed if listed.count(host) > 1}) if len(listed) < 5000 else []
    if twice:
        return f"TF_CONFIG lists {twice[0]} twice: two tasks cannot listen at one address."
    unknown_roles = sorted(set(cluster.roles) - _ROLES)
    if unknown_roles:
        return f"TF_CONFIG has a role `{unknown_roles[0]}`; roles are chief, worker, ps and evaluator."
    if cluster.role is None or cluster.role == "evaluator":
        return ""
    if cluster.role not in cluster.roles:
        return f"TF_CONFIG makes this process a `{cluster.role}`, and its cluster has none."
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
    profile="gate",
    evidence=("https://www.tensorflow.org/tutorials/distribute/parameter_server_training",),
)
def parameter_servers_missing(job: Job) -> Iterator[Verdict]:
    """A parameter-server strategy gets a cluster without parameter servers, or without workers.

    What it checks:
        Where a script makes a ParameterServerStrategy and writes TF_CONFIG out, its cluster has `ps` and `worker`.

    Why it matters:
        The strategy stops with ValueError: there is nobody to keep the variables, or nobody to train.

    Example:
        `tf.distribute.ParameterServerStrategy(resolver)` and `{"cluster": {"worker": [...]}, ...}`.

    Fix:
        List the servers under `ps`, or take MultiWorkerMirroredStrategy.

    Known limits:
        Only where strategy and TF_CONFIG stand in files of one job.

    Evidence:
        TensorFlow tutorial, parameter server training.
    """
    met = False
    strategies = [claim for claim in job.about("tf_strategy") if "ParameterServer" in str(claim.alternatives)]
    for subject, cluster, claim in _clusters(job) if strategies else ():
        met = True
        if cluster is None or not cluster.roles:
            yield unknown(subject, "TF_CONFIG is no JSON that is known as a whole", at=claim)
            continue
        missing = [role for role in ("ps", "worker") if cluster.roles.get(role, []) == []]
        if missing:
            yield failed(
                subject,
                f"{quoted(strategies[0])} needs parameter servers and workers, but the cluster in TF_CONFIG has no"
                f" `{missing[0]}`.",
                at=claim,
                also=((strategies[0], "the strategy"),),
                remedy=f'List them under "{missing[0]}", or take MultiWorkerMirroredStrategy.',
            )
        else:
            yield passed(subject)
    if not met:
        yield not_applicable(job.name, "no parameter-server strategy has its TF_CONFIG written out")
