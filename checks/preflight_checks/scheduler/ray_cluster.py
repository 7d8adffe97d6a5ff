"""Whether the nodes of a Ray cluster are alike, and large enough for what the job asks of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from preflight.job import Claim, Job, Known
from preflight.judgement import Verdict, check, failed, not_applicable, passed, unknown
from preflight.lazy.patterns import lazy_pattern
from preflight.outcome import Confidence, Evidence, Severity
from preflight.recording import Cluster, Facts, Fleet
from preflight.request import Request, probe_name
from preflight_checks.demands import fold, unseen
from preflight_checks.majority import split
from preflight_checks.probes.packages import packages

#: What shows that a job runs on Ray.
_QUANTITIES = ("ray_role", "ray_bundle", "ray_train_worker_gpus", "ray_submit_address", "ray_num_gpus")
_PART = lazy_pattern(r"(\S+) ([0-9.]+)")
#: KubeRay labels its nodes; its autoscaler, and Ray's own, may add larger ones.
_GROWING = ("ray.io/node-group", "ray.io/node-type-name")


def _ray_claims(job: Job) -> tuple[Claim, ...]:
    return tuple(claim for quantity in _QUANTITIES for claim in job.about(quantity))


def _plan_versions(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    if _ray_claims(job) and len(fleet.nodes) > 1 and fleet.executor != "ray":
        for node in fleet.reached:
            yield Request(probe_name(packages), node.name, context=True, deadline_s=8.0)


@check(
    "RAY030",
    "ray-nodes-differ",
    plan=_plan_versions,
    probes=(packages,),
    cost="reads the metadata of installed packages in the ranks' interpreter",
    severity=Severity.ERROR,
    evidence=("Unakar/Logic-RL#30", "ray-project/ray#47792", "gpustack/gpustack#5509"),
)
def ray_nodes_differ(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """All nodes of a Ray job have the same Ray, to the last number, and the same minor version of Python.

    What it checks: the version of Ray, and the first two numbers of Python's, where the ranks will run; on a running
    cluster, of the Python that its workers have. A Ray of another minor version is VER003's to tell.

    Why it matters: `ray start` on a node with another version ends with "Version mismatch", so that the node is missing
    in the cluster; where the look is turned off, tasks fail with errors of unpickling.

    Example: three nodes with Ray 2.9.3 and one with 2.9.0.

    Fix: one image or environment for all nodes.

    Known limits: over Ray itself only Python is compared: a cluster that runs has refused other versions of Ray.

    Evidence: Unakar/Logic-RL#30, ray-project/ray#47792, gpustack/gpustack#5509.
    """
    claims = _ray_claims(job)
    if fleet.executor == "ray" and len(fleet.reached) > 1:
        pythons = {record.node.name: record.python for record in fleet.records if record.python and not record.problem}
        yield from _differing("Python", {node: _minor(text) for node, text in pythons.items()}, claims)
        return
    if not claims or len(fleet.nodes) < 2:
        yield not_applicable(job.name, "the job does not run on Ray, or has one node")
        return
    yield from unseen(facts, packages, "Ray versions")
    have = facts.observed(packages)
    rays = {node: value.versions["ray"] for node, value in have.items() if "ray" in value.versions}
    if len(rays) < 2:
        return
    # Another minor version is said already, with the other frameworks'.
    same_minor = len({_minor(version) for version in rays.values()}) == 1
    if same_minor:
        yield from _differing("Ray", rays, claims)
    yield from _differing("Python", {node: _minor(have[node].python) for node in rays}, claims)


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _differing(what: str, versions: Mapping[str, str], claims: tuple[Claim, ...]) -> Iterator[Verdict]:
    found = split(versions)
    if found is None or not found.odd:
        yield passed(f"{what} on {len(versions)} nodes")
        return
    node, version = found.first_odd
    yield failed(
        f"{what} of the Ray nodes",
        f"{what} differs between the nodes of a Ray job, which Ray refuses: {found.spoken}",
        at=Evidence("packages", f"{what} {version}", found.common, "ray --version; python --version", node),
        also=claims[:1],
        nodes=tuple(found.odd),
        remedy=f"Give {fold(found.odd)} the {what} {found.common} of the others, or run all nodes from one image.",
    )


def _plan(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    yield from ()


@check(
    "RAY031",
    "bundle-fits-no-node",
    plan=_plan,
    probes=(),
    cost="nothing on the nodes; one list of the cluster's nodes",
    severity=Severity.ERROR,
    evidence=("ray-project/ray#47792", "https://docs.ray.io/en/latest/ray-core/scheduling/placement-group.html"),
)
def bundle_fits_no_node(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Some node of the Ray cluster has all that a bundle of the job asks for.

    What it checks: the largest bundle of each placement group, and the GPUs of each worker of a Ray trainer, against
    what each node of the running cluster announced in all.

    Why it matters: a bundle is never split over nodes. Where none has all of it the group stays pending; Ray says so in
    its log only, and the job waits for ever with what it already holds.

    Example: `placement_group([{"GPU": 8, "CPU": 96}])` on nodes that announce 8 GPUs and 64 CPUs.

    Fix: smaller bundles, or nodes that announce more (`ray start --num-cpus`).

    Known limits: whether all bundles fit together is not judged. On a cluster that may grow (KubeRay, Ray's autoscaler,
    by the labels of its nodes) it is a warning.

    Evidence: ray-project/ray#47792; Ray documentation, placement groups.
    """
    cluster = fleet.cluster if fleet.cluster is not None and fleet.cluster.kind == "ray" else None
    if cluster is None:
        yield not_applicable(job.name, "the nodes are not reached through Ray, whose word on its nodes this needs")
        return
    wanted = [(claim, _resources(claim)) for claim in (*job.about("ray_bundle"), *job.about("ray_train_worker_gpus"))]
    if not wanted:
        yield not_applicable(job.name, "no script asks for bundles or workers of a known size")
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
    asked = ", ".join(f"{name} {amount:g}" for name, amount in bundle.items())
    held = fold(f"{node.name}: {_spoken(node.has, bundle)}" for node in cluster.nodes)
    grows = any(label in node.labels for node in cluster.nodes for label in _GROWING)
    return failed(
        subject,
        f"`{claim.spelling}` asks for {asked} on one node, and no node of the cluster has that: {held}",
        at=claim,
        also=(Evidence("cluster", held, asked, "ray status"),),
        remedy="Ask for less on each node, or have the nodes announce more (`ray start --num-cpus`, `--num-gpus`)."
        + (" The cluster may grow by itself; then it needs a kind of node that has that." if grows else ""),
        severity=Severity.WARNING if grows else None,
        confidence=Confidence.MEDIUM if grows else None,
    )


def _resources(claim: Claim) -> dict[str, float]:
    """`CPU 2, GPU 1` as amounts; empty where it is not known."""
    if not isinstance(claim.value, Known):
        return {}
    value = claim.value.value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return {"GPU": float(value)}
    parts = [_PART.fullmatch(part.strip()) for part in str(value).split(",")]
    return {match[1]: float(match[2]) for match in parts if match is not None} if all(parts) else {}


def _holds(has: Mapping[str, float], bundle: Mapping[str, float]) -> bool:
    return all(has.get(name, 0.0) >= amount for name, amount in bundle.items())


def _spoken(has: Mapping[str, float], bundle: Mapping[str, float]) -> str:
    return " ".join(f"{name} {has.get(name, 0.0):g}" for name in bundle)
