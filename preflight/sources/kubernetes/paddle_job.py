"""The settings of a PaddleJob that its operator reads, as `setting.paddlejob.NAME`.

Source: paddle-operator (api/v1/paddlejob_types.go, controllers/paddlejob_helper.go; 0.4) and training-operator
(pkg/controller.v1/paddlepaddle/envvar.go, pkg/webhooks/paddlepaddle; 1.9).
"""

from __future__ import annotations

from preflight.model.job import Known, Value
from preflight.model.job.quantities import SECTION, SETTING_PREFIX
from preflight.sources.formats.structured import Kind, Member, Node, NodeClaims, value_of
from preflight.sources.kubernetes.kinds import Workload

_PREFIX = f"{SETTING_PREFIX}paddlejob."
_PLAIN = ("intranet", "cleanPodPolicy", "withGloo", "elastic")
_ETCD = ("PADDLE_ELASTIC_SERVER", "PADDLE_ELASTIC_ETCD_SERVICE_HOST")


def state_paddle_job(stating: NodeClaims, workload: Workload) -> None:
    """State what the operator of this PaddleJob reads."""
    if workload.kind != "PaddleJob":
        return
    if workload.group == "batch.paddlepaddle.org":
        _state_own(stating, workload.spec)
    else:
        _state_kubeflow(stating, workload.spec)


def _state_own(stating: NodeClaims, spec: Node) -> None:
    for name in _PLAIN:
        stating.add_member(f"{_PREFIX}spec.{name}", spec.member(name))
    for name in ("ps", "worker"):
        member = spec.member(name)
        if member is None or member.node.kind is not Kind.OBJECT:
            continue
        _state(stating, f"spec.{name}", Known(SECTION), member)
        stating.add_member(f"{_PREFIX}spec.{name}.replicas", member.node.member("replicas"))
        containers = member.node.member("template", "spec", "containers")
        pods = containers.node.items if containers is not None else ()
        if containers is not None and len(pods) > 1 and not _starts(pods[0]) and any(map(_starts, pods)):
            _state(stating, f"spec.{name}.program_behind", Known(True), containers)
        if any(item.text("name") in _ETCD for pod in pods for item in _items(pod.at("env"))):
            _state(stating, "spec.etcd", Known(True), member)


def _state_kubeflow(stating: NodeClaims, spec: Node) -> None:
    specs = spec.at("paddleReplicaSpecs")
    for member in specs.in_force if specs is not None and specs.kind is Kind.OBJECT else ():
        if member.node.kind is not Kind.OBJECT:
            continue
        known = member.key in ("Master", "Worker")
        _state(stating, f"replicas.{member.key if known else 'unknown'}", Known(member.key), member)
        containers = _items(member.node.at("template", "spec", "containers"))
        names = [name for pod in containers if (name := pod.member("name")) is not None]
        if names and all(isinstance(value_of(name.node), Known) and name.node.value != "paddle" for name in names):
            stating.add_member(f"{_PREFIX}replicas.container", names[0])


def _state(stating: NodeClaims, name: str, value: Value, member: Member) -> None:
    stating.add(f"{_PREFIX}{name}", value, member)


def _items(node: Node | None) -> tuple[Node, ...]:
    return tuple(item for item in node.items if item.kind is Kind.OBJECT) if node is not None else ()


def _starts(container: Node) -> bool:
    """Whether a container's command runs Python, or anything of Paddle."""
    words = [item.value for key in ("command", "args") if (node := container.at(key)) for item in node.items]
    return any(isinstance(word, str) and ("python" in word or "paddle" in word) for word in words)
