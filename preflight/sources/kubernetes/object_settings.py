"""The fields of a controller's object as settings: `setting.kubeflow_job.spec.nprocPerNode`.

The object is one place, and so is each of its parts: a role, a group of workers, a pod template, a container. A part's
claims rest on a claim that stands for the part, and that one rests on the claim that stands for the object. What is
wrong with a value is a row of the rules' tables (data/refusals/kubernetes.toml and its neighbours).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from preflight._util.budget import truncate
from preflight._util.secret_names import is_secret
from preflight.model.job import Claim, Known, Unresolved, Value, lift
from preflight.model.job.quantities import SETTING_PREFIX
from preflight.sources.configs.setting_claims import state_settings
from preflight.sources.formats.structured import Kind, Member, Node, NodeClaims, value_of
from preflight.sources.kubernetes.conditions import is_filled_in
from preflight.sources.kubernetes.kinds import Role, Workload
from preflight.sources.kubernetes.object_kinds import CONTAINER, POD, SHAPES
from preflight.sources.kubernetes.pods import containers_of

#: How these claims are named; `because` is the place.
SOURCE = "object"
#: Stands for the place itself: true where all its fields are written out.
_CALL = "(call)"


#: Sections and lists that are stated without what is in them: some of the variables are secret, containers are places
#: of their own, and no table has a row about the rest.
_APART = frozenset(
    (
        *("env", "envFrom", "containers", "initContainers", "volumes", "volumeMounts", "ports", "affinity"),
        *("securityContext", "tolerations", "lifecycle", "readinessProbe", "startupProbe", "nodeSelector"),
        *("workerGroupSpecs", "replicatedJobs", "rules", "runtimePatches"),
    )
)
_MAX_PARTS = 60


def state_object(stating: NodeClaims, workload: Workload, *, whole: bool) -> None:
    """State the fields of an object, of its parts, and of its pods; `whole` if all its fields could be read."""
    root = workload.root
    head = root.member("kind")
    shape = SHAPES.get((root.text("apiVersion"), root.text("kind")))
    if shape is None or head is None:
        return
    own = NodeClaims(stating.file, SOURCE, stating.scope, stating.strength)
    own.places = stating.places
    place = _place(own, shape.framework, head, (), whole=whole)
    _stated(own, root, shape.framework, place)
    _state_template(own, root.at("spec"), shape.framework, place)
    for path, framework in shape.parts.items():
        for part in truncate(list(_parts(root, path)), _MAX_PARTS, "parts of an object"):
            number = len(own.claims)
            at = _place(own, framework, part, (place,), whole=whole, number=number)
            if part.key:
                own.claims.append(_named(own, framework, "role", Known(part.key), part, at))
            _stated(own, part.node, framework, at)
            _state_template(own, part.node, framework, at)
    # The pods of a TrainJob are those of its runtime.
    for role in workload.roles if workload.kind != "TrainJob" else ():
        _state_pod(own, root, role, place, whole=whole)
    stating.claims.extend(own.claims)


def _state_template(own: NodeClaims, node: Node | None, framework: str, place: Claim) -> None:
    """State the names of the containers of a part's pods, and their policy of restarts."""
    for path in (("template",), ("template", "spec", "template")):
        pod = node.at(*path, "spec") if node is not None else None
        containers = containers_of(pod) if pod is not None and pod.kind is Kind.OBJECT else ()
        names = [name for container in containers if (name := container.member("name")) is not None]
        if pod is None or not names:
            continue
        value = lift(lambda *items: tuple(map(str, items)), *(_read(name.node) for name in names))
        own.claims.append(_named(own, framework, "containers", value, names[0], place))
        policy = pod.member("restartPolicy")
        if policy is not None:
            own.claims.append(_named(own, framework, "template_restart_policy", _read(policy.node), policy, place))


def _parts(root: Node, path: str) -> Iterator[Member]:
    """The parts at a path: the members of a mapping, or the items of a list under no name."""
    *above, last = path.split(".")
    if last != "*":
        member = root.member(*above, last)
        if member is not None and member.node.kind is Kind.OBJECT:
            yield member
        return
    found = root.member(*above)
    if found is None:
        return
    yield from (member for member in found.node.in_force if member.node.kind is Kind.OBJECT)
    for item in found.node.items:
        if item.kind is Kind.OBJECT and item.members:
            first = item.member("name") or item.members[0]
            yield Member("", first.key_start, first.key_end, item)


def _state_pod(own: NodeClaims, root: Node, role: Role, place: Claim, *, whole: bool) -> None:
    pod = role.pod
    if pod is None or not role.template.members:
        return
    if role.template is root:
        at = place
    else:
        first = role.template.members[0]
        at = _place(own, POD, first, (place,), whole=whole, number=len(own.claims))
        own.claims.append(_named(own, POD, "pods", role.replicas, first, at))
        own.claims.append(_named(own, POD, "role", Known(role.name), first, at))
        _stated(own, role.template, POD, at)
    for container in containers_of(pod):
        if not container.members:
            continue
        head = container.member("name") or container.members[0]
        within = _place(own, CONTAINER, head, (place, at), whole=whole, number=len(own.claims))
        _stated(own, container, CONTAINER, within)
        env = container.at("env")
        for item in env.items if env is not None else ():
            name, value = item.member("name"), item.at("value")
            if name is not None and isinstance(name.node.value, str) and name.node.value.isidentifier():
                hidden = value is None or is_secret(name.node.value)
                read = Unresolved("a value that is not shown") if value is None or hidden else _read(value)
                own.claims.append(_named(own, CONTAINER, f"variables.{name.node.value}", read, name, within))


def _place(
    own: NodeClaims, framework: str, head: Member, above: tuple[Claim, ...], *, whole: bool, number: int = 0
) -> Claim:
    """A claim that stands for a place; `number` tells apart those at the same characters."""
    span = own.places.span(head.key_start, head.key_end)
    text = own.spelling(head) if head.node.kind is Kind.SCALAR else own.file.text[head.key_start : head.key_end]
    value: Value = Known(True) if whole else Unresolved("parts of the file that are written later")
    quantity = f"{SETTING_PREFIX}{framework}.{_CALL}"
    mark = Claim(quantity, value, span, f"{text}#{number}", SOURCE, own.scope, own.strength)
    # What a place belongs to is said once, not by each of its claims.
    rests = (replace(mark, because=above),)
    own.claims.append(Claim(quantity, value, span, text, SOURCE, own.scope, own.strength, because=rests))
    return mark


def _named(own: NodeClaims, framework: str, name: str, value: Value, at: Member, place: Claim) -> Claim:
    span = own.places.span(at.key_start, at.key_end)
    spelling = own.spelling(at) if at.node.kind is Kind.SCALAR else own.file.text[at.key_start : at.key_end]
    quantity = f"{SETTING_PREFIX}{framework}.{name}"
    return Claim(quantity, value, span, spelling, SOURCE, own.scope, own.strength, because=(place,))


def _stated(own: NodeClaims, node: Node, framework: str, place: Claim) -> None:
    state_settings(own, node, framework, key_of=_plain, stops=_is_apart, read=_read, because=(place,), names=True)


def _plain(key: str) -> str:
    """A key as a condition names it: `nvidia_com_gpu`."""
    return re.sub(r"\W", "_", key)


def _is_apart(member: Member) -> bool:
    """Whether a member is a pod template, which is a place of its own, or one of `_APART`."""
    is_pod = member.key.lower().endswith("template") and member.node.member("spec", "containers") is not None
    return is_pod or member.key in _APART


def _read(node: Node) -> Value:
    """The value; unresolved where a placeholder is written. A `$` in a list is one of a command."""
    if is_filled_in(node):
        return Unresolved("a placeholder that is replaced later")
    return lift(lambda item: item, value_of(node))
