"""Checks that the nodes of a Ray cluster are equal, and large enough for the job's bundles."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from preflight.model.findings import Evidence, Severity
from preflight.model.job import Claim, Job, Known
from preflight.model.recording import Cluster, Facts, Fleet
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, unknown
from preflight_checks.comparison import short_version, split
from preflight_checks.plans import known_facts, no_requests, on_every_node
from preflight_checks.probes.packages import packages
from preflight_checks.requirements import fold

#: Claims that show that a job runs on Ray.
_QUANTITIES = ("ray_role", "ray_bundle", "ray_train_worker_gpus", "ray_submit_address", "ray_num_gpus")
_PART = re.compile(r"(\S+) ([0-9.]+)")
#: Labels of nodes under KubeRay's or Ray's autoscaler, which may add larger nodes.
_AUTOSCALER_LABELS = ("ray.io/node-group", "ray.io/node-type-name")


def _ray_claims(job: Job) -> tuple[Claim, ...]:
    return tuple(claim for quantity in _QUANTITIES for claim in job.about(quantity))


def _compares_versions(job: Job, fleet: Fleet) -> bool:
    """Whether the nodes of a Ray job are reached by an executor other than Ray, which compares versions itself."""
    return bool(_ray_claims(job)) and len(fleet.nodes) > 1 and fleet.executor != "ray"


@check(
    "RAY030",
    "ray-nodes-differ",
    plan=on_every_node(packages, when=_compares_versions, context=True, deadline_s=8.0),
    cost="reads the metadata of installed packages in the ranks' interpreter",
    severity=Severity.ERROR,
    evidence=("Unakar/Logic-RL#30", "ray-project/ray#47792", "gpustack/gpustack#5509"),
)
def ray_nodes_differ(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """All nodes of a Ray job have exactly the same version of Ray, and the same minor version of Python.

    What it checks: the version of Ray, and the first two numbers of Python's, where the ranks will run; on a running
    cluster, that of its workers' Python. VER003 reports a different minor version of Ray.

    Why it matters: `ray start` on a node with another version ends with "Version mismatch", so the node is missing from
    the cluster; if this test is disabled, tasks fail with unpickling errors.

    Example: three nodes with Ray 2.9.3 and one with 2.9.0.

    Fix: one image or environment for all nodes.

    Known limits: over Ray itself only Python is compared: a running cluster has already rejected other versions of Ray.
    """
    claims = _ray_claims(job)
    if fleet.executor == "ray" and len(fleet.reached) > 1:
        pythons = {record.node.name: record.python for record in fleet.records if record.python and not record.problem}
        yield from _differing("Python", {node: short_version(text) for node, text in pythons.items()}, claims)
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
        yield from _differing("Ray", rays, claims)
    yield from _differing("Python", {node: short_version(observed[node].python) for node in rays}, claims)


def _differing(quantity: str, versions: Mapping[str, str], claims: tuple[Claim, ...]) -> Iterator[Verdict]:
    found = split(versions)
    if found is None or not found.odd:
        yield passed(f"{quantity} on {len(versions)} nodes")
        return
    node, version = found.first_odd
    yield failed(
        f"{quantity} of the Ray nodes",
        f"{quantity} differs between the nodes of a Ray job, which Ray rejects: {found.description}",
        at=Evidence("packages", f"{quantity} {version}", found.common, "ray --version; python --version", node),
        also=claims[:1],
        nodes=tuple(found.odd),
        remedy=f"Give {fold(found.odd)} the {quantity} {found.common} of the others, or run all nodes from one image.",
    )


@check(
    "RAY031",
    "bundle-fits-no-node",
    plan=no_requests,
    cost="nothing on the nodes; one list of the cluster's nodes",
    severity=Severity.ERROR,
    evidence=(
        "ray-project/ray#47792",
        (
            "Ray documentation, placement groups",
            "https://docs.ray.io/en/latest/ray-core/scheduling/placement-group.html",
        ),
    ),
)
def bundle_fits_no_node(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Each bundle of the job fits on some node of the Ray cluster.

    What it checks: the largest bundle of each placement group, and the GPUs of each worker of a Ray trainer, compared
    with the total resources of each node of the running cluster.

    Why it matters: a bundle is never split over nodes. If no node has all of it, the group stays pending; only Ray's
    log shows it, and the job waits forever while it holds other resources.

    Example: `placement_group([{"GPU": 8, "CPU": 96}])` on nodes that announce 8 GPUs and 64 CPUs.

    Fix: smaller bundles, or nodes that announce more (`ray start --num-cpus`).

    Known limits: whether all bundles fit together is not judged. On a cluster that may grow (KubeRay, Ray's autoscaler,
    by the labels of its nodes) it is a warning.
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
            yield unknown(subject, f"`{claim.spelling}` is known at run time only", at=claim)
        elif any(_holds(node.has, bundle) for node in cluster.nodes):
            yield passed(subject)
        else:
            yield _too_large(subject, claim, bundle, cluster)


def _too_large(subject: str, claim: Claim, bundle: Mapping[str, float], cluster: Cluster) -> Verdict:
    bundle_text = ", ".join(f"{name} {amount:g}" for name, amount in bundle.items())
    held = fold(f"{node.name}: {_describe(node.has, bundle)}" for node in cluster.nodes)
    grows = any(label in node.labels for node in cluster.nodes for label in _AUTOSCALER_LABELS)
    return failed(
        subject,
        f"`{claim.spelling}` requests {bundle_text} on one node, and no node of the cluster has that: {held}",
        at=claim,
        also=(Evidence("cluster", held, bundle_text, "ray status"),),
        remedy="Request less on each node, or start the nodes with more (`ray start --num-cpus`, `--num-gpus`)."
        + (" If an autoscaler adds nodes, it needs a node type with these resources." if grows else ""),
        certain=not grows,
    )


def _resources(claim: Claim) -> dict[str, float]:
    """`CPU 2, GPU 1` as amounts; empty if unknown."""
    if not isinstance(claim.value, Known):
        return {}
    value = claim.value.value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return {"GPU": float(value)}
    parts = [_PART.fullmatch(part.strip()) for part in str(value).split(",")]
    return {match[1]: float(match[2]) for match in parts if match is not None} if all(parts) else {}


def _holds(resources: Mapping[str, float], bundle: Mapping[str, float]) -> bool:
    return all(resources.get(name, 0.0) >= amount for name, amount in bundle.items())


def _describe(resources: Mapping[str, float], bundle: Mapping[str, float]) -> str:
    return " ".join(f"{name} {resources.get(name, 0.0):g}" for name in bundle)
