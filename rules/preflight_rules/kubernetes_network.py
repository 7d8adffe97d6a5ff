"""What stands between the pods of a job: meshes, host networks, RDMA devices."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Job
from preflight.judgement import Verdict, failed, not_applicable, passed, rule
from preflight.outcome import Confidence, Severity
from preflight_rules.reading import numbers, placed, quoted, texts, undecided
from preflight_rules.workloads import KUBEFLOW, Role, workloads

#: Namespaces of clusters and of documentation; a profile of a Kubeflow user is never called so.
_PLAIN_NAMESPACES = frozenset(
    ("", "default", "kubeflow", "kubeflow-system", "kube-system", "kube-public", "training-operator", "mpi-operator")
)
#: Namespaces that a platform without a mesh creates for its tenants (Amazon SageMaker HyperPod's task governance).
_OTHER_PLATFORM = ("hyperpod-",)
_OFF = frozenset(("false", "disabled", "none"))


@rule(
    "KUB008",
    "mesh-proxy-may-join-pods",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("kubeflow/pytorch-operator#258", "kubeflow/trainer#1636", "canonical/bundle-kubeflow#610"),
)
def mesh_proxy_may_join_pods(job: Job) -> Iterator[Verdict]:
    """The pods of a distributed job in a user namespace do not say that no mesh proxy may join them.

    What it checks:
        A Kubeflow job of two or more pods in a namespace of its own carries `sidecar.istio.io/inject: "false"` (or
        the switch of Linkerd or Kuma) as annotation or label of each role's pod template. Kubeflow creates user
        namespaces ("profiles") with injection on; `default`, the operators' own namespaces, and manifests without a
        namespace carry no sign of a mesh, and there nothing is said.

    Why it matters:
        The proxy takes over the ports of the pod. Ranks that dial the master before the proxies trust each other are
        refused, gRPC and NCCL bootstraps break inside mutual TLS, and the workers crash or wait for ever; the proxy
        also keeps a finished pod running.

    Example:
        A PyTorchJob with `namespace: alice` and pod templates without annotations.

    Fix:
        `metadata: {annotations: {sidecar.istio.io/inject: "false"}}` in the pod template of every role.

    Known limits:
        Whether the namespace is under injection is known to the cluster only: hence a warning of medium confidence,
        and none where the namespace is left to whoever applies the manifest.

    Evidence:
        kubeflow/pytorch-operator#258, kubeflow/trainer#1636, canonical/bundle-kubeflow#610.
    """
    met = False
    for workload in workloads(job):
        namespaces = workload.say("namespace")
        if workload.kind not in KUBEFLOW or not workload.group.endswith("kubeflow.org"):
            continue
        if not namespaces:
            continue
        met = True
        open_end = undecided(workload.id, (*namespaces, *(role.count for role in workload.roles)))
        pods = numbers(workload.pods())
        if open_end is not None:
            yield open_end
            continue
        name = (texts(namespaces[0].value) or ("",))[0]
        open_roles = [role for role in workload.roles if not _is_off(role)]
        if name in _PLAIN_NAMESPACES or name.startswith(_OTHER_PLATFORM) or not pods or max(pods) < 2 or not open_roles:
            yield passed(workload.id)
            continue
        yield failed(
            workload.id,
            f"{quoted(workload.head)} starts {max(pods)} pods in {placed(namespaces[0])} and"
            f' {_named(open_roles)} no `sidecar.istio.io/inject: "false"`: under injection, as in every profile of'
            " Kubeflow, a mesh proxy joins each pod and blocks the ranks' first connections.",
            at=namespaces[0],
            also=tuple((role.count, role.name) for role in open_roles[:4]),
            remedy='Annotate the pod template of each role with `sidecar.istio.io/inject: "false"`.',
        )
    if not met:
        yield not_applicable(job.name, "no Kubeflow job says in which namespace it runs")


def _is_off(role: Role) -> bool:
    said = role.every("mesh_injection")
    return any(text.lower() in _OFF for claim in said for text in texts(claim.value))


def _named(roles: list[Role]) -> str:
    names = ", ".join(f"`{role.name}`" for role in roles)
    return f"{names} has" if len(roles) == 1 else f"{names} have"
