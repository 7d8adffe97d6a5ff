"""Checks that Slurm can allocate the job's nodes: enough suitable nodes, in service, in a partition that allows the
request.

Partitions come from the controller's list, so they are checked even if all nodes are in use.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from preflight.model.findings import Evidence, Severity
from preflight.model.job import Claim, Job, Known, Scope, is_whole_number
from preflight.model.recording import Cluster, ClusterNode, Facts, Fleet, Partition
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, unknown
from preflight.sources.launchers.slurm import parse_seconds
from preflight_checks.plans import (
    gated_by,
    known_facts,
    no_requests,
    on_every_node,
    short_version,
    split,
    warning_check,
)
from preflight_checks.probes.packages import packages
from preflight_checks.requirements import fold

NOT_SLURM = "Slurm did not report its partitions"


@dataclass(frozen=True, slots=True)
class RequestedOption:
    """One option in the batch header: the value as written, and its location."""

    value: str
    claim: Claim


def requested_options(job: Job) -> dict[str, RequestedOption]:
    """Return the requests in the batch header, by the long name of the option; unresolved values are left out."""
    found: dict[str, RequestedOption] = {}
    for claim in job.about("batch_option"):
        if isinstance(claim.value, Known):
            name, _, value = str(claim.value.value).partition("=")
            found[name] = RequestedOption(value, claim)
    return found


def slurm_of(fleet: Fleet) -> Cluster | None:
    return fleet.cluster if fleet.cluster is not None and fleet.cluster.kind == "slurm" else None


def partitions_of(cluster: Cluster, requested: dict[str, RequestedOption]) -> tuple[Partition, ...]:
    """Return the partitions that the job may run in; Slurm starts it in the first available one."""
    if "--partition" in requested:
        names = requested["--partition"].value.split(",")
        return tuple(item for item in cluster.partitions if item.name in names)
    return tuple(item for item in cluster.partitions if item.is_default)


def min_nodes(requested: dict[str, RequestedOption]) -> int | None:
    text = requested["--nodes"].value.partition("-")[0] if "--nodes" in requested else ""
    return int(text) if is_whole_number(text) else None


MIB = 2**20


#: A check that judges what the scheduler granted.
allocation_check = functools.partial(check, plan=no_requests, probes=())


@allocation_check("ALC004", "node-out-of-service", severity=Severity.ERROR)
def node_out_of_service(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No node of the job is drained or down in Slurm.

    What it checks: Slurm's state of each node of the allocation, and of each node that the job names.

    Why it matters: Slurm does not allocate drained nodes: a job that names one waits forever, and a job that runs on
    one cannot be requeued there. The finding quotes the administrator's reason.

    Example: node7 is drained with the reason "GPU 3 fell off the bus".

    Fix: exclude the node, or return it to service (`scontrol update nodename=N state=resume`) once it is fixed.

    Known limits: in a running allocation, a drained node is a warning; NOD001 reports a node that is down.
    """
    cluster = slurm_of(fleet)
    if cluster is None or not cluster.nodes:
        yield not_applicable(job.name, NOT_SLURM)
        return
    closed = {node.name: node.closed for node in cluster.nodes if node.closed}
    running = bool(fleet.records)
    wanted = {node.name for node in fleet.nodes} if running else set(_named_nodes(fleet))
    broken = {name: closed[name] for name in sorted(wanted) if name in closed}
    if not broken:
        yield passed(job.name)
        return
    for name, reason in broken.items():
        yield failed(
            name,
            f"Slurm has {name} as {reason}" + ("" if running else ", and does not allocate it"),
            at=Evidence("node state", reason, "in service", f"scontrol show node {name}", name),
            remedy=f"Leave {name} out (--exclude={name}), or return it to service once it is fixed.",
            severity=Severity.WARNING if running else None,
        )


def _named_nodes(fleet: Fleet) -> Iterator[str]:
    if fleet.origin is not None:
        yield from fleet.origin.named


@allocation_check("ALC005", "too-few-fitting-nodes", severity=Severity.ERROR)
def too_few_fitting_nodes(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The partition has as many suitable nodes as the job needs at the same time.

    What it checks: how many nodes in the partition have the GPUs, cores, memory and features that the batch header
    requests per node, and how many of these are in service.

    Why it matters: a job starts on all of its nodes or on none. With too few suitable nodes it never starts; with too
    few in service it waits until one is repaired, and no tool shows which.

    Example: a job requests sixteen nodes with eight GPUs, and two of the partition's sixteen are drained.

    Fix: request fewer nodes or less per node, or return nodes to service.

    Known limits: reservations, licenses, the topology and features joined by operators are ignored. Busy nodes count
    as suitable.
    """
    cluster, requested = slurm_of(fleet), requested_options(job)
    count = min_nodes(requested)
    if cluster is None or not cluster.nodes or not cluster.partitions or count is None:
        yield not_applicable(
            job.name, NOT_SLURM if cluster is None else "the batch header does not request a number of nodes"
        )
        return
    needs = dict(_node_needs(requested))
    feature = requested["--constraint"].value if "--constraint" in requested else ""
    plain = feature if feature.replace("_", "").replace("-", "").isalnum() else ""
    fitting = [
        node
        for node in cluster.nodes
        if all(node.has.get(name, 0) >= amount for name, amount in needs.items())
        and (not plain or plain in node.labels)
    ]
    usable = [node for node in fitting if not node.closed]
    wants = ", ".join(_amount(name, amount) for name, amount in needs.items()) + (f", {plain}" if plain else "")
    each = f" with {wants.removeprefix(', ')}" if wants else ""
    if len(usable) >= count:
        yield passed(job.name)
        return
    closed = tuple(node.name for node in fitting if node.closed)
    evidence = Evidence("fitting nodes", f"{len(fitting)}, {len(usable)} of them in service", f"{count}", "sinfo -N -l")
    if len(fitting) < count:
        yield failed(
            f"{job.name}: nodes",
            f"the job needs {count} nodes{each} at the same time, but its partition has only {len(fitting)}",
            at=requested["--nodes"].claim,
            also=(evidence,),
            remedy="Request fewer nodes, less on each node, or another partition.",
        )
        return
    yield failed(
        f"{job.name}: nodes",
        f"the job needs {count} nodes{each} at the same time; only {len(usable)} are in service, and {fold(closed)} "
        f"{'is' if len(closed) == 1 else 'are'} not: "
        + "; ".join(f"{node.name} is {node.closed}" for node in fitting[:64] if node.closed),
        at=requested["--nodes"].claim,
        also=(evidence,),
        nodes=closed,
        remedy=f"Return {fold(closed)} to service, or request {len(usable)} nodes.",
        severity=Severity.WARNING,
    )


def _node_needs(requested: dict[str, RequestedOption]) -> Iterator[tuple[str, float]]:
    """Yield the numeric requests of the header for each node."""
    gpus = 0
    for option in ("--gres", "--gpus-per-node"):
        if option in requested:
            gpus = max(gpus, _gpus(requested[option].value, bare=option != "--gres"))
    if gpus:
        yield "gpu", gpus
    cores = _whole_number(requested, "--cpus-per-task") or 1
    tasks = _whole_number(requested, "--ntasks-per-node") or 1
    if cores * tasks > 1:
        yield "cpu", cores * tasks
    memory = requested["--mem"].value if "--mem" in requested else ""
    units = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}
    number, unit = (memory[:-1], memory[-1:].upper()) if memory[-1:].upper() in units else (memory, "M")
    if is_whole_number(number) and int(number):
        yield "memory", int(number) * units[unit] * MIB


def _whole_number(requested: dict[str, RequestedOption], option: str) -> int | None:
    return int(requested[option].value) if option in requested and is_whole_number(requested[option].value) else None


def _gpus(text: str, *, bare: bool) -> int:
    """Return the GPUs in `gpu:a100:8,nvme:1` or, if `bare`, in `a100:8`."""
    total = 0
    for part in text.split(","):
        pieces = part.split(":")
        if bare or pieces[0].removeprefix("gres/") == "gpu":
            total += int(pieces[-1]) if is_whole_number(pieces[-1]) else 1
    return total


def _amount(name: str, amount: float) -> str:
    if name == "memory":
        return f"{amount / MIB / 1024:.4g} GiB of memory"
    return f"{amount:.0f} {'GPU' if name == 'gpu' else 'core'}{'s' if amount != 1 else ''}"


@allocation_check("ALC006", "scheduler-refuses", severity=Severity.ERROR)
def scheduler_refuses(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Slurm would accept the job.

    What it checks: `sbatch --test-only` with the options of the batch header; nothing is submitted.

    Why it matters: a site's own rules (accounts, limits, plugins) are known only to Slurm.

    Example: `--gres=gpu:9` where no node has so many: "Requested node configuration is not available".

    Fix: follow the message; other findings may be more specific.

    Known limits: Slurm also accepts requests that it can never meet: a partition that is down, a time beyond its limit.
    """
    cluster = slurm_of(fleet)
    if cluster is None or not cluster.partitions:
        yield not_applicable(job.name, NOT_SLURM)
        return
    if not cluster.refusal:
        if cluster.unknown:
            yield unknown(f"{job.name}: request", "; ".join(cluster.unknown))
        else:
            yield passed(job.name)
        return
    # Other checks report nodes out of service by name, and Slurm's message does not give the duration.
    passing = "not available" in cluster.refusal and any(node.closed for node in cluster.nodes)
    claims = [requested.claim for requested in requested_options(job).values()]
    evidence = Evidence("sbatch --test-only", cluster.refusal, "a start time", "sbatch --test-only")
    yield failed(
        f"{job.name}: request",
        f'Slurm would reject the job: "{cluster.refusal}"',
        at=claims[0] if claims else evidence,
        also=(*claims[1:], evidence),
        remedy="Correct the option that the message names; `sbatch --test-only` repeats the test without submitting "
        "the job.",
        severity=Severity.WARNING if passing else None,
    )


@allocation_check("ALC001", "partition-unavailable", severity=Severity.ERROR)
def partition_unavailable(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The partition that the job names exists and starts jobs.

    What it checks: `--partition` of the header compared with the partitions of the cluster and their state.

    Why it matters: sbatch rejects an unknown name; a job in a partition that is down waits forever, while `sbatch
    --test-only` still reports a start time.

    Example: `--partition=gpus` on a cluster whose partition is called gpu.

    Fix: name a partition that `sinfo` lists as up.

    Known limits: one of several partitions must be up; hidden partitions are not visible to every user.
    """
    cluster, requested = slurm_of(fleet), requested_options(job)
    if cluster is None or not cluster.partitions:
        yield not_applicable(job.name, NOT_SLURM)
        return
    if "--partition" not in requested:
        yield not_applicable(job.name, "the batch header names no partition")
        return
    option = requested["--partition"]
    partitions, known = partitions_of(cluster, requested), [item.name for item in cluster.partitions]
    if not partitions:
        near = get_close_matches(option.value, known, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"There are {fold(known)}."
        yield failed(
            f"{job.name}: partition",
            f"the cluster has no partition {option.value}",
            at=option.claim,
            also=(Evidence("partitions", fold(known), option.value, "sinfo --summarize"),),
            remedy=hint,
        )
    elif all(item.state != "UP" for item in partitions):
        states = ", ".join(f"{item.name} is {item.state}" for item in partitions)
        yield failed(
            f"{job.name}: partition",
            f"{states}, so it starts no jobs",
            at=option.claim,
            also=(Evidence("partition state", states, "UP", f"scontrol show partition {partitions[0].name}"),),
            remedy="Choose a partition that is up, or wait until an administrator opens this partition.",
        )
    else:
        yield passed(job.name)


@allocation_check("ALC002", "beyond-partition-limits", severity=Severity.ERROR)
def beyond_partition_limits(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The header's request is within the limits of its partition.

    What it checks: nodes and time compared with MinNodes, MaxNodes, MaxTime and the size of the partition.

    Why it matters: without EnforcePartLimits Slurm accepts the job, which then waits forever (PartitionTimeLimit,
    PartitionNodeLimit); only the reason in squeue shows it.

    Example: `--time=7-00:00:00` in a partition with MaxTime=2-00:00:00.

    Fix: request less, or choose another partition.

    Known limits: a quality of service may lift these limits, so with `--qos` this is a warning. Limits of accounts and
    users are not checked.
    """
    cluster, requested = slurm_of(fleet), requested_options(job)
    partitions = partitions_of(cluster, requested) if cluster is not None else ()
    if not partitions:
        yield not_applicable(job.name, NOT_SLURM if cluster is None else "its partition is unknown")
        return
    faults = [list(_exceeded_limit(item, requested)) for item in partitions]
    if not all(faults):
        yield passed(job.name)
        return
    lifted = "--qos" in requested
    for option, message, limit in faults[0]:
        yield failed(
            f"{job.name}: {limit}",
            message,
            at=requested[option].claim,
            also=(Evidence("partition limits", limit, "", f"scontrol show partition {partitions[0].name}"),),
            remedy=f"Request less than {limit}, or choose another partition.",
            certain=not lifted,
        )


def _exceeded_limit(item: Partition, requested: dict[str, RequestedOption]) -> Iterator[tuple[str, str, str]]:
    """Yield, for each limit of this partition that the request exceeds, the option, a message and the limit."""
    count = min_nodes(requested)
    if count is not None:
        for bound, limit_name in ((item.max_nodes, "MaxNodes"), (item.total_nodes, "TotalNodes")):
            if bound is not None and count > bound:
                message = (
                    f"the job requests {count} nodes, but partition {item.name} allows at most {bound} ({limit_name})"
                )
                yield "--nodes", message, f"{limit_name}={bound}"
                break
        if item.min_nodes and _max_nodes(requested, count) < item.min_nodes:
            message = f"the job requests {count} nodes, but partition {item.name} requires at least {item.min_nodes}"
            yield "--nodes", message, f"MinNodes={item.min_nodes}"
    if "--time" in requested and item.max_time:
        wanted, limit = parse_seconds(requested["--time"].value), parse_seconds(item.max_time)
        if wanted is not None and limit and wanted > limit:
            requested_time = requested["--time"].value
            message = f"the job requests {requested_time}, but partition {item.name} allows at most {item.max_time}"
            yield "--time", message, f"MaxTime={item.max_time}"


def _max_nodes(requested: dict[str, RequestedOption], count: int) -> int:
    text = requested["--nodes"].value.partition("-")[2]
    return int(text) if is_whole_number(text) else count


@allocation_check("ALC003", "account-not-allowed", severity=Severity.ERROR)
def account_not_allowed(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The account and quality of service that the job names may use its partition.

    What it checks: `--account` and `--qos` compared with AllowAccounts, DenyAccounts, AllowQos and DenyQos.

    Why it matters: the job is rejected, or waits forever with the reason AccountNotAllowed or QOSNotAllowed.

    Example: `--account=students` in a partition with AllowAccounts=research.

    Fix: name an account or quality of service that the partition allows.

    Known limits: without an account in the header, the user's default account is not looked up. Children of an allowed
    account are also allowed, so accounts are a warning.
    """
    cluster, requested = slurm_of(fleet), requested_options(job)
    partitions = partitions_of(cluster, requested) if cluster is not None else ()
    if not partitions or not ({"--account", "--qos"} & requested.keys()):
        yield not_applicable(
            job.name,
            "the batch header names neither an account nor a quality of service, or the nodes are not from Slurm",
        )
        return
    is_known = False
    for option, word in (("--account", "account"), ("--qos", "quality of service")):
        if option not in requested:
            continue
        value = requested[option].value
        lists = [
            (item.allowed_accounts, item.denied_accounts) if word == "account" else (item.allowed_qos, item.denied_qos)
            for item in partitions
        ]
        if all((allowed and value not in allowed) or value in denied for allowed, denied in lists):
            is_known = True
            allowed = lists[0][0]
            yield failed(
                f"{job.name}: {word}",
                f"partition {partitions[0].name} does not allow the {word} {value}",
                at=requested[option].claim,
                also=(
                    Evidence(
                        f"allowed there ({word})", fold(allowed) or "all but some", value, "scontrol show partition"
                    ),
                ),
                remedy=f"Use one of {fold(allowed)}." if allowed else f"Use another {word}.",
                certain=word != "account",
            )
    if not is_known:
        yield passed(job.name)


# Checks that a scheduler of pods or actors has room for the job: all of it at once, on nodes that fit.


#: Claims that show that a job runs on Ray.
_QUANTITIES = ("ray_role", "ray_bundle", "ray_train_worker_gpus", "ray_submit_address", "ray_num_gpus")
_PART = re.compile(r"(\S+) ([0-9.]+)")
#: Labels of nodes under KubeRay's or Ray's autoscaler, which may add larger nodes.
_RAY_AUTOSCALER_LABELS = ("ray.io/node-group", "ray.io/node-type-name")


def _ray_claims(job: Job) -> tuple[Claim, ...]:
    return tuple(claim for quantity in _QUANTITIES for claim in job.about(quantity))


def _compares_versions(job: Job, fleet: Fleet) -> bool:
    """Return whether an executor other than Ray reaches a Ray job's nodes; Ray itself compares versions."""
    return bool(_ray_claims(job)) and len(fleet.nodes) > 1 and fleet.executor != "ray"


@check(
    "RAY030",
    "ray-nodes-differ",
    plan=on_every_node(packages, when=_compares_versions, context=True, deadline_s=8.0),
    severity=Severity.ERROR,
)
def ray_nodes_differ(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """All nodes of a Ray job have exactly the same version of Ray, and the same minor version of Python.

    What it checks: the version of Ray, and the first two numbers of Python's version, where the ranks will run; on a
    running cluster, those of its workers' Python. VER003 reports a different minor version of Ray.

    Why it matters: `ray start` on a node with another version stops with "Version mismatch", so the node is missing
    from the cluster; if this test is disabled, tasks fail with unpickling errors.

    Example: three nodes with Ray 2.9.3 and one with 2.9.0.

    Fix: use one image or environment on all nodes.

    Known limits: over Ray itself, only Python is compared: a running cluster has already rejected other versions of
    Ray.
    """
    claims = _ray_claims(job)
    if fleet.executor == "ray" and len(fleet.reached) > 1:
        pythons = {record.node.name: record.python for record in fleet.records if record.python and not record.problem}
        yield from _difference_findings("Python", {node: short_version(text) for node, text in pythons.items()}, claims)
        return
    if not claims or len(fleet.nodes) < 2:
        yield not_applicable(job.name, "the job does not run on Ray, or has one node")
        return
    observed = yield from known_facts(facts, packages, "Ray versions")
    rays = {node: value.versions["ray"] for node, value in observed.items() if "ray" in value.versions}
    if len(rays) < 2:
        return
    # VER003 reports another minor version.
    same_minor = len({short_version(version) for version in rays.values()}) == 1
    if same_minor:
        yield from _difference_findings("Ray", rays, claims)
    yield from _difference_findings("Python", {node: short_version(observed[node].python) for node in rays}, claims)


def _difference_findings(quantity: str, versions: Mapping[str, str], claims: tuple[Claim, ...]) -> Iterator[Verdict]:
    division = split(versions)
    if division is None or not division.odd:
        yield passed(f"{quantity} on {len(versions)} nodes")
        return
    node, version = division.first_odd
    yield failed(
        f"{quantity} of the Ray nodes",
        f"{quantity} differs between the nodes of a Ray job, which Ray rejects: {division.description}",
        at=Evidence("packages", f"{quantity} {version}", division.common, "ray --version; python --version", node),
        also=claims[:1],
        nodes=tuple(division.odd),
        remedy=f"Install {quantity} {division.common} on {fold(division.odd)} as on the other nodes, or use one "
        "image on all nodes.",
    )


@check("RAY031", "bundle-fits-no-node", plan=no_requests, severity=Severity.ERROR)
def bundle_fits_no_node(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Each bundle of the job fits on at least one node of the Ray cluster.

    What it checks: the largest bundle of each placement group, and the GPUs of each worker of a Ray trainer, compared
    with the total resources of each node of the running cluster.

    Why it matters: a bundle is never split across nodes. If no node has all its resources, the group stays pending;
    only Ray's log shows this, and the job waits forever while it holds other resources.

    Example: `placement_group([{"GPU": 8, "CPU": 96}])` on nodes that announce 8 GPUs and 64 CPUs.

    Fix: smaller bundles, or nodes that announce more (`ray start --num-cpus`).

    Known limits: whether all bundles fit together is not judged. On a cluster that may grow (KubeRay or Ray's
    autoscaler, according to the node labels), the finding is a warning.
    """
    cluster = fleet.cluster if fleet.cluster is not None and fleet.cluster.kind == "ray" else None
    if cluster is None:
        yield not_applicable(job.name, "the nodes are not reached through Ray, which this check requires")
        return
    wanted = [(claim, _resources(claim)) for claim in (*job.about("ray_bundle"), *job.about("ray_train_worker_gpus"))]
    if not wanted:
        yield not_applicable(job.name, "no script requests bundles or workers of a known size")
        return
    for claim, bundle in wanted:
        subject = f"{claim.span.path}:{claim.span.line}"
        if not bundle:
            yield unknown(subject, f"`{claim.spelling}` is known only at run time", at=claim)
        elif any(_has_resources(node.has, bundle) for node in cluster.nodes):
            yield passed(subject)
        else:
            yield _too_large_finding(subject, claim, bundle, cluster)


def _too_large_finding(subject: str, claim: Claim, bundle: Mapping[str, float], cluster: Cluster) -> Verdict:
    bundle_text = ", ".join(f"{name} {amount:g}" for name, amount in bundle.items())
    held = fold(f"{node.name}: {_describe(node.has, bundle)}" for node in cluster.nodes)
    grows = any(label in node.labels for node in cluster.nodes for label in _RAY_AUTOSCALER_LABELS)
    return failed(
        subject,
        f"`{claim.spelling}` requests {bundle_text} on one node, but no node of the cluster has that: {held}",
        at=claim,
        also=(Evidence("cluster", held, bundle_text, "ray status"),),
        remedy="Request less on each node, or start the nodes with more resources (`ray start --num-cpus`, "
        "`--num-gpus`)."
        + (" If an autoscaler adds nodes, it needs a node type with these resources." if grows else ""),
        certain=not grows,
    )


def _resources(claim: Claim) -> dict[str, float]:
    """Parse `CPU 2, GPU 1` into amounts; empty if unknown."""
    if not isinstance(claim.value, Known):
        return {}
    value = claim.value.value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return {"GPU": float(value)}
    parts = [_PART.fullmatch(part.strip()) for part in str(value).split(",")]
    return {match[1]: float(match[2]) for match in parts if match is not None} if all(parts) else {}


def _has_resources(resources: Mapping[str, float], bundle: Mapping[str, float]) -> bool:
    return all(resources.get(name, 0.0) >= amount for name, amount in bundle.items())


def _describe(resources: Mapping[str, float], bundle: Mapping[str, float]) -> str:
    return " ".join(f"{name} {resources.get(name, 0.0):g}" for name in bundle)


#: Device plugins' names for whole accelerators, as in the manifests.
_GPU = re.compile(r"(?:nvidia|amd|aliyun)\.com/gpu|nvidia\.com/mig-[\w.-]+|habana\.ai/gaudi|huawei\.com/Ascend\w+")
#: Labels of nodes in autoscaled pools, where more nodes may be added.
_AUTOSCALER_LABELS = (
    *("karpenter.sh/nodepool", "karpenter.sh/provisioner-name", "cloud.google.com/gke-nodepool"),
    *("eks.amazonaws.com/nodegroup", "kubernetes.azure.com/agentpool", "alpha.eksctl.io/nodegroup-name"),
    *("node.openshift.io/os_id", "machine.openshift.io/cluster-api-machineset", "doks.digitalocean.com/node-pool"),
)
_MIB = 1024.0 * 1024.0


@dataclass(frozen=True, slots=True)
class PodNeed:
    """The request of each pod of one role."""

    name: str
    count: int
    gpus: float
    cpus: float
    memory: float
    labels: tuple[tuple[str, ...], ...]
    claims: tuple[Claim, ...]
    gang: bool

    @property
    def description(self) -> str:
        """The request of one pod, for messages."""
        parts = [f"{self.gpus:g} GPUs"] if self.gpus else []
        parts += [f"{self.cpus:g} cores"] if self.cpus else []
        parts += [f"{self.memory / _MIB / 1024:.3g} GiB"] if self.memory else []
        return ", ".join(parts) or "no resources"

    def matches(self, node: ClusterNode) -> bool:
        """Return whether the node has the labels that the pods select; one of several alternatives is enough."""
        return all(
            any(node.labels.get(key) == value for key, _, value in (item.partition("=") for item in alternatives))
            for alternatives in self.labels
        )

    def fits(self, amounts: Mapping[str, float]) -> int:
        """Return the number of pods that fit into these amounts."""
        wanted = ((self.gpus, gpus_of(amounts)), (self.cpus, amounts.get("cpu")), (self.memory, amounts.get("memory")))
        rooms = [math.floor(observed / need) for need, observed in wanted if need and observed is not None]
        return min(rooms, default=self.count)


def gpus_of(amounts: Mapping[str, float]) -> float:
    """Return all accelerators among the resources of a node."""
    return sum(value for key, value in amounts.items() if _GPU.fullmatch(key))


def pod_needs(job: Job) -> tuple[PodNeed, ...]:
    """Return the requests of the pods of each role in the job's Kubernetes objects, if their number is known."""
    needs = []
    for claim in job.about("pod_replicas"):
        scope = claim.scope
        count = _number(job, "pod_replicas", scope)
        if not count or count < 1:
            continue
        labels = tuple(
            tuple(str(item) for item in label.alternatives)
            for label in job.about("node_label")
            if _covers(label, scope)
        )
        claims = [claim, *(entry for entry in job.about("pod_gpus") if entry.scope == scope)]
        needs.append(
            PodNeed(
                scope.role or "the job",
                int(count),
                _number(job, "pod_gpus", scope) or 0.0,
                _number(job, "pod_cpu_requests", scope) or 0.0,
                (_number(job, "pod_memory_requests_mib", scope) or 0.0) * _MIB,
                tuple(entry for entry in labels if entry),
                tuple(claims),
                any(_covers(entry, scope) for entry in job.about("gang")),
            )
        )
    return tuple(needs)


def _covers(claim: Claim, scope: Scope) -> bool:
    return claim.scope.covers(scope)


def _number(job: Job, quantity: str, scope: Scope) -> float | None:
    value = job.value(quantity, scope)
    held = value.value if isinstance(value, Known) else None
    return float(held) if isinstance(held, (int, float)) and not isinstance(held, bool) else None


def _cluster_of_pods(job: Job, fleet: Fleet, facts: Facts) -> Generator[Verdict, None, Cluster | None]:
    """Return the Kubernetes cluster if its nodes and the job's number of pods are known; otherwise yield the
    verdict.
    """
    cluster = fleet.cluster
    if cluster is None or cluster.kind != "kubernetes":
        yield not_applicable(job.name, "the nodes are not reached through Kubernetes, which this check requires")
    elif not pod_needs(job):
        yield not_applicable(job.name, "no manifest among the job's files gives a number of pods")
    elif not cluster.nodes:
        reason = "; ".join(cluster.unknown) or "the cluster has no nodes"
        yield unknown(job.name, f"the resources of the cluster are unknown: {reason}")
    else:
        return cluster
    return None


@check("KUB040", "gang-does-not-fit", plan=no_requests, severity=Severity.ERROR)
@gated_by(_cluster_of_pods)
def gang_does_not_fit(job: Job, fleet: Fleet, facts: Facts, cluster: Cluster) -> Iterator[Verdict]:
    """The cluster has room for all pods of the job at the same time.

    What it checks: for each role of the job's manifest, the GPUs, cores and memory that its pods request compared with
    the total capacity (`allocatable`) of the nodes with the selected labels, free or not.

    Why it matters: a job that can never be placed as a whole stays Pending forever, or starts partially and waits in
    the setup of the process group for missing ranks while it holds its GPUs.

    Example: four workers of 8 GPUs in a pool of three such nodes; one pod that requests 16 GPUs.

    Fix: fewer or smaller pods, another pool, or more nodes.

    Known limits: taints, affinities between pods, volumes and quotas are not checked. If a pool is autoscaled
    (according to its labels), or nodes are cordoned or not ready, the finding is a warning.
    """
    fitting = True
    for need in pod_needs(job):
        nodes = [node for node in cluster.nodes if need.matches(node)]
        everywhere = {node.name: need.fits(node.has) for node in nodes}
        open_now = {node.name: need.fits(node.has) for node in nodes if not node.closed}
        if sum(open_now.values()) >= need.count:
            continue
        fitting = False
        closed = [f"{node.name} ({node.closed})" for node in nodes if node.closed]
        grows = any(label in node.labels for node in (nodes or cluster.nodes) for label in _AUTOSCALER_LABELS)
        mild = grows or not nodes or sum(everywhere.values()) >= need.count
        yield failed(
            f"pods of {need.name}",
            _shortage_message(need, nodes, open_now, closed),
            at=need.claims[0],
            also=(*need.claims[1:2], _evidence(need, open_now)),
            remedy="Request fewer or smaller pods, choose another pool, or add nodes; "
            "`kubectl get nodes -o custom-columns=NAME:.metadata.name,GPUS:.status.allocatable` lists the nodes."
            + (" An autoscaled pool must grow." if grows else ""),
            certain=not mild,
        )
    if fitting:
        yield passed(job.name)


def _shortage_message(need: PodNeed, nodes: list[ClusterNode], room: Mapping[str, int], closed: list[str]) -> str:
    pods = "1 pod requests" if need.count == 1 else f"{need.count} pods request"
    where = f"the nodes with {' and '.join('|'.join(item) for item in need.labels)}" if need.labels else "its nodes"
    if not nodes:
        return f"{pods} {need.description} (each) on {where}, but no node of the cluster has these labels"
    most = max(room.values(), default=0)
    message = f"{pods} {need.description} each, but {where} ({len(nodes)}) have room for only {sum(room.values())}"
    if not most and room:
        message += "; the largest has " + _largest(nodes)
    return message + (f"; not counted: {fold(closed)}" if closed else "")


def _largest(nodes: list[ClusterNode]) -> str:
    most = max(nodes, key=lambda node: (gpus_of(node.has), node.has.get("cpu", 0.0)))
    memory = most.has.get("memory", 0.0) / _MIB / 1024
    return f"{gpus_of(most.has):g} GPUs, {most.has.get('cpu', 0.0):g} cores, {memory:.3g} GiB ({most.name})"


def _evidence(need: PodNeed, room: Mapping[str, int]) -> Evidence:
    held = fold(f"{name}: {count}" for name, count in room.items()) or "no node"
    return Evidence("cluster", f"room for pods by node: {held}", f"{need.count} in total", "kubectl get nodes")


@warning_check("KUB041", "gang-starts-in-part", plan=no_requests)
@gated_by(_cluster_of_pods)
def gang_starts_in_part(job: Job, fleet: Fleet, facts: Facts, cluster: Cluster) -> Iterator[Verdict]:
    """Either all pods of the job can be placed now, or none of them starts.

    What it checks: without gang scheduling, the free resources of the nodes, compared with the pods that are not
    running yet: either all fit, or none.

    Why it matters: pods that start without the others hold their GPUs and wait in rendezvous until its timeout; two
    such jobs wait for each other forever.

    Example: 3 of 4 workers would start, and the fourth waits for a GPU that another team holds.

    Fix: a gang scheduler (`schedulerName`, a PodGroup, a queue of Kueue), or wait for free resources.

    Known limits: free resources change by the minute; priorities, taints and quotas are not checked.
    """
    if fleet.records and not any(record.problem for record in fleet.records):
        yield passed(job.name)
        return
    if any(node.free is None for node in cluster.nodes):
        yield unknown(job.name, "; ".join(cluster.unknown) or "the free resources of the nodes are unknown")
        return
    running, clean = len(fleet.reached), True
    for need in pod_needs(job):
        if need.gang or need.count < 2:
            continue
        nodes = [node for node in cluster.nodes if need.matches(node) and not node.closed]
        room = {node.name: need.fits(node.free or {}) for node in nodes}
        now = min(need.count, running + sum(room.values()))
        if now in (0, need.count):
            continue
        clean = False
        yield failed(
            f"pods of {need.name}",
            f"{now} of {need.count} pods of {need.description} each can run now, and nothing makes them wait for the "
            "rest: they would hold their resources until the other pods fit",
            at=need.claims[0],
            also=(_evidence(need, room),),
            remedy="Name the cluster's gang scheduler in `schedulerName`, or a Kueue queue in the labels, or wait.",
        )
    if clean:
        yield passed(job.name)
