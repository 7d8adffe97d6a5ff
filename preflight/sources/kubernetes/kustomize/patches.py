"""Applies one patch to one object: strategic merge, and JSON patch (RFC 6902). Every value keeps its location."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from preflight._util.budget import spend
from preflight.sources.formats.structured import Kind, Member, Node

#: The key that identifies the items of a list (the `patchMergeKey` of the core API's types).
_MERGE_KEYS = {
    **dict.fromkeys(("containers", "initContainers", "ephemeralContainers", "env", "volumes"), "name"),
    "volumeMounts": "mountPath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "resourceClaims": "name",
}
#: Kinds whose lists are merged by key; in a custom resource a patch replaces whole lists.
_BUILT_IN = frozenset(("Job", "CronJob", "Pod", "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"))
_BUILT_IN_GROUPS = frozenset(("", "batch", "apps"))


class PatchFault(ValueError):
    """The patch does not apply to the object."""


def merge_patch(target: Node, patch: Node) -> Node:
    """The object with a strategic merge patch applied."""
    group = target.text("apiVersion").rpartition("/")[0]
    by_key = target.text("kind") in _BUILT_IN and group in _BUILT_IN_GROUPS
    return _merge(target, patch, by_key=by_key)


def _merge(target: Node, patch: Node, *, by_key: bool) -> Node:
    if patch.kind is not Kind.OBJECT or target.kind is not Kind.OBJECT or patch.text("$patch") == "replace":
        return patch
    members = {member.key: member for member in target.in_force}
    for member in patch.in_force:
        spend()
        if member.key.startswith("$"):
            continue
        before = members.get(member.key)
        is_null = member.node.kind is Kind.SCALAR and member.node.value is None
        if is_null or member.node.text("$patch") == "delete":
            members.pop(member.key, None)
        elif before is None:
            members[member.key] = member
        elif member.node.kind is Kind.ARRAY and before.node.kind is Kind.ARRAY:
            key = _MERGE_KEYS.get(member.key) if by_key else None
            items = _items(before.node.items, member.node.items, key) if key is not None else member.node.items
            members[member.key] = replace(member, node=replace(member.node, items=items))
        elif member.node.kind is Kind.OBJECT and before.node.kind is Kind.OBJECT:
            members[member.key] = replace(before, node=_merge(before.node, member.node, by_key=by_key))
        else:
            members[member.key] = member
    return replace(target, members=tuple(members.values()))


def _items(before: Sequence[Node], after: Sequence[Node], key: str) -> tuple[Node, ...]:
    """The items of both lists: the items that the patch names come first, in its order."""
    rest = list(before)
    first: list[Node] = []
    for item in after:
        spend()
        name = item.at(key)
        at = next((n for n, other in enumerate(rest) if name is not None and _equal(other.at(key), name)), None)
        known = rest.pop(at) if at is not None else None
        if item.text("$patch") != "delete":
            first.append(item if known is None else _merge(known, item, by_key=True))
    return (*first, *rest)


def _equal(first: Node | None, second: Node) -> bool:
    return first is not None and first.kind is Kind.SCALAR and first.value == second.value


def apply_operations(target: Node, operations: Sequence[Node]) -> Node:
    """The object with a JSON patch applied. Raises PatchFault."""
    for operation in operations:
        spend()
        path = _steps(operation.text("path"))
        kind = operation.text("op")
        if kind in ("add", "replace"):
            value = operation.at("value")
            if value is None:
                raise PatchFault("an operation without a value")
            target = _change(target, path, value, add=kind == "add")
        elif kind == "remove":
            target = _change(target, path, None, add=False)
        elif kind in ("copy", "move"):
            source = _steps(operation.text("from"))
            value = _at(target, source)
            if kind == "move":
                target = _change(target, source, None, add=False)
            target = _change(target, path, value, add=True)
        elif kind != "test":
            raise PatchFault(f"{kind!r} is not an operation")
    return target


def _steps(pointer: str) -> list[str]:
    if not pointer.startswith("/"):
        raise PatchFault(f"{pointer!r} is not a path")
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer[1:].split("/")][:60]


def _at(node: Node, steps: Sequence[str]) -> Node:
    for step in steps:
        node = node.items[_index(node, step)] if node.kind is Kind.ARRAY else _member(node, step).node
    return node


def _member(node: Node, key: str) -> Member:
    found = node.member(key)
    if found is None:
        raise PatchFault(f"there is no {key}")
    return found


def _index(node: Node, step: str) -> int:
    if not step.isdecimal() or len(step) > 6 or int(step) >= len(node.items):
        raise PatchFault(f"there is no item {step}")
    return int(step)


def _change(node: Node, steps: Sequence[str], value: Node | None, *, add: bool) -> Node:
    """The node with `value` at a path; if it is None, without the value at that path."""
    step, rest = steps[0], steps[1:]
    if node.kind is Kind.ARRAY:
        items = list(node.items)
        if rest:
            at = _index(node, step)
            items[at] = _change(items[at], rest, value, add=add)
        elif value is None:
            del items[_index(node, step)]
        elif add:
            at = len(items) if step == "-" else _index(node, step) if step != str(len(items)) else len(items)
            items.insert(at, value)
        else:
            items[_index(node, step)] = value
        return replace(node, items=tuple(items))
    if node.kind is not Kind.OBJECT:
        raise PatchFault(f"there is nothing below {step}")
    before = node.member(step)
    kept = tuple(member for member in node.members if member.key != step)
    if rest:
        inner = _change(_member(node, step).node, rest, value, add=add)
    elif value is None:
        _member(node, step)
        return replace(node, members=kept)
    elif before is None and not add:
        raise PatchFault(f"there is no {step} to replace")
    else:
        inner = value
    made = Member(step, inner.start, inner.start, inner) if before is None or not rest else replace(before, node=inner)
    return replace(node, members=(*kept, made))
