"""Joins a TrainJob with the (Cluster)TrainingRuntime that its `runtimeRef` names.

The runtime is a JobSet with a policy. The job's `trainer` wins over the runtime's `node` container and over its policy
(trainer 2.1, pkg/runtime/framework/plugins/{jobset,torch}).
"""

from __future__ import annotations

from dataclasses import replace

from preflight.model.job import as_int
from preflight.sources.formats.structured import Kind, Member, Node, value_of
from preflight.sources.kubernetes.kinds import Role, Workload

#: The container that runs the ranks.
_NODE = "node"


def with_runtime(job: Workload, runtime: Workload) -> Workload:
    """The job's roles as the operator creates them from the runtime."""
    trainer = job.spec.at("trainer")
    chosen = _trainer_role(runtime.roles)
    if chosen is None:
        return job
    nodes = job.nodes or runtime.nodes
    roles = []
    for role in runtime.roles:
        if role is not chosen:
            roles.append(role)
            continue
        template = _with_trainer(role.template, trainer) if trainer is not None else role.template
        count = as_int(value_of(nodes.node)) if nodes is not None else role.replicas
        roles.append(Role(role.name, count, nodes or role.member, template))
    return replace(
        job,
        roles=tuple(roles),
        processes=job.processes or runtime.processes,
        nodes=nodes,
        gang=job.gang or runtime.gang,
    )


def _trainer_role(roles: tuple[Role, ...]) -> Role | None:
    for role in roles:
        pod = role.pod
        containers = pod.at("containers") if pod is not None else None
        if containers is not None and any(item.text("name") in (_NODE, "trainer") for item in containers.items):
            return role
    return next((role for role in roles if role.trains), None)


def _with_trainer(template: Node, trainer: Node) -> Node:
    """The pod template with the container that the job changes."""
    containers = template.at("spec", "containers")
    if containers is None or not containers.items:
        return template
    named = [item for item in containers.items if item.text("name") in (_NODE, "trainer")]
    target = named[0] if named else containers.items[0]
    items = tuple(_change_container(item, trainer) if item is target else item for item in containers.items)
    spec = template.at("spec")
    assert spec is not None
    return _with(template, "spec", _with(spec, "containers", replace(containers, items=items)))


def _change_container(container: Node, trainer: Node) -> Node:
    for key in ("image", "command", "args"):
        member = trainer.member(key)
        if member is not None:
            container = _with_member(container, member)
    resources = trainer.member("resourcesPerNode")
    if resources is not None:
        container = _with_member(container, replace(resources, key="resources"))
    own = trainer.member("env")
    if own is not None and own.node.kind is Kind.ARRAY:
        before = container.at("env")
        names = {item.text("name") for item in own.node.items}
        kept = tuple(item for item in (before.items if before is not None else ()) if item.text("name") not in names)
        container = _with_member(container, replace(own, node=replace(own.node, items=(*kept, *own.node.items))))
    return container


def _with(node: Node, key: str, value: Node) -> Node:
    member = node.member(key)
    assert member is not None
    return _with_member(node, replace(member, node=value))


def _with_member(node: Node, member: Member) -> Node:
    kept = tuple(each for each in node.members if each.key != member.key)
    return replace(node, members=(*kept, member))
