"""Faults that make the API server reject a custom resource, by the schema, the rules and the conditions of its kind.

The schemas are data (`tables/custom_resources.json`), read from the definitions of the operators' own releases. Unknown
fields are rejected as with kubectl's `--validate=strict`, its default since 1.25. A value that is filled in later is
never rejected.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from preflight._util import toml
from preflight._util.budget import spend
from preflight.sources.formats.structured import Kind, Member, Node
from preflight.sources.kubernetes.objects import GENERIC_KINDS, TRAINING_KINDS
from preflight.sources.tables import FOLDER

_NAMES: dict[str, str] = toml.beside(__file__, "names.toml")["types"]
#: What a schema says of texts of which only a few are taken.
_LIMITED = frozenset(("enum", "rules"))
_RANGES = {"int32": 2**31, "int64": 2**63}
_QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
_MAX_QUOTED = 12
#: Refusals of one object that are listed; more of them say nothing new.
_MAX_REFUSALS = 40


class Refusal(NamedTuple):
    """One fault of an object.

    Args:
        problem: what is wrong, quoting the manifest.
        remedy: what to do.
        start, end: the faulty characters of the text: a key with its value.
        accepted_by: the releases of the operator that accept the object, oldest first.
        refused_by: the newest release, which rejects it.
    """

    problem: str
    remedy: str
    start: int
    end: int
    accepted_by: tuple[str, ...] = ()
    refused_by: str = ""


class Outcome(NamedTuple):
    """Whether an object whose schema is known is accepted.

    Args:
        release: the newest release of the operator that was read.
        refusals: what it rejects.
        open_values: the characters of values that are filled in later, but those of texts that may be anything.
    """

    release: str
    refusals: tuple[Refusal, ...]
    open_values: tuple[tuple[int, int], ...] = ()


@functools.cache
def _table() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "custom_resources.json").read_text(encoding="utf-8"))
    return found


def admission(root: Node) -> Outcome | None:
    """Return whether the API server accepts an object; None if its kind is not in the table."""
    kind, version = root.text("kind"), root.text("apiVersion")
    releases: dict[str, int] | None = _table()["kinds"].get(f"{version}/{kind}")
    if releases is None:
        return _misspelt_kind(root, kind) or _unserved_version(root, kind, version)
    newest = next(reversed(releases))
    reader = _Reader(_table())
    found = reader.refusals(root, releases[newest])
    if not found:
        return Outcome(newest, (), tuple(reader.open_values))
    refused = {number for number in set(releases.values()) if _Reader(_table()).refusals(root, number)}
    accepted = tuple(name for name, number in releases.items() if number not in refused)
    if not accepted and all(_was_field(f"{version}/{kind}", refusal) for refusal in found):
        accepted = (f"a release before {next(iter(releases))}",)
    return Outcome(newest, tuple(refusal._replace(accepted_by=accepted, refused_by=newest) for refusal in found))


_FORMER_FIELDS = toml.words(__file__, "names.toml", "former-fields")
_UNKNOWN_FIELD = re.compile(r"`([\w.]+)` is not a field of ([\w.\[\]]+)")


def _was_field(kind: str, refusal: Refusal) -> bool:
    found = _UNKNOWN_FIELD.match(refusal.problem)
    field = f"{found[2]}.{found[1]}" if found is not None else ""
    return not _FORMER_FIELDS.isdisjoint((f"{kind}:{field}", f"{kind.rpartition('/')[0]}/*:{field}"))


#: The groups of Kubernetes' own kinds.
_CORE = {"Job": "batch", "CronJob": "batch", "Deployment": "apps", "StatefulSet": "apps"}


def _misspelt_kind(root: Node, kind: str) -> Outcome | None:
    """Return the refusal of a kind whose capitals differ from those in the API."""
    member = root.member("kind")
    meant = next((name for name in sorted(TRAINING_KINDS | GENERIC_KINDS) if name.lower() == kind.lower()), kind)
    group = root.text("apiVersion").rpartition("/")[0]
    served = _CORE.get(meant) == group or any(
        name.startswith(f"{group}/") and name.endswith(f"/{meant}") for name in _table()["kinds"]
    )
    if member is None or meant == kind or not served:
        return None
    problem = f"there is no kind `{kind}`; kinds are case-sensitive"
    return Outcome("", (Refusal(problem, f"Write `kind: {meant}`.", member.key_start, member.node.end),))


def _unserved_version(root: Node, kind: str, version: str) -> Outcome | None:
    """Return the refusal of an API version that no release of the operator ever served."""
    member = root.member("apiVersion")
    group, _, number = version.rpartition("/")
    served = {
        name.split("/")[1]: next(reversed(releases))
        for name, releases in _table()["kinds"].items()
        if name.startswith(f"{group}/") and name.endswith(f"/{kind}")
    }
    if member is None or not group or not served or number in _table()["former"].get(group, ()):
        return None
    newest = list(served)[-1]
    problem = f"no release serves {kind} in version {version} ({', '.join(f'{group}/{name}' for name in served)} exist)"
    refusal = Refusal(problem, f"Write `apiVersion: {group}/{newest}`.", member.key_start, member.node.end)
    return Outcome(served[newest], (refusal._replace(refused_by=served[newest]),))


class _Reader:
    """Compares one object with the schema of one release."""

    def __init__(self, table: dict[str, Any]) -> None:
        self._parts: list[dict[str, Any]] = table["parts"]
        self._rewritten_kinds: list[str] = table["rewritten"]
        #: A webhook decodes the object and writes it again before its schema counts.
        self._rewritten = False
        self._found: list[Refusal] = []
        self.open_values: list[tuple[int, int]] = []

    def refusals(self, root: Node, number: int) -> list[Refusal]:
        """Return everything that the schema rejects."""
        # The whole object has no key of its own; what it lacks is reported at its first one.
        labels = root.at("metadata", "labels")
        queued = labels is not None and labels.member(_QUEUE_LABEL) is not None
        self._rewritten = queued or root.text("kind") in self._rewritten_kinds
        self._value(root, self._parts[number], "", _place_of(root))
        return self._found

    def _refuse(self, problem: str, remedy: str, at: tuple[int, int]) -> None:
        if len(self._found) < _MAX_REFUSALS:
            self._found.append(Refusal(problem, remedy, *at))

    def _value(self, node: Node, part: dict[str, Any], path: str, at: tuple[int, int]) -> None:
        spend(1)
        if is_open(node):
            if part.get("type") != "string" or not _LIMITED.isdisjoint(part):
                self.open_values.append(at)
            return
        kind = part.get("type", "")
        quantity = kind == "int-or-string" and isinstance(node.value, float)
        if self._rewritten and node.kind is Kind.SCALAR and (node.value == "" or quantity):
            # The quantity 0.5 becomes "500m", and an empty text goes.
            return
        if kind == "string" and node.kind is Kind.ARRAY and "format" in part:
            # The API server's own code does not compare the type of a list where a text with a format is expected.
            return
        if not _is_of(node, kind):
            if not (node.value is None and node.kind is Kind.SCALAR and part.get("nullable")):
                expected = _NAMES.get(kind, kind)
                problem = f"{_quote(path, node)} is {_name_value(node)}, where {expected} is expected"
                self._refuse(problem, f"Write {expected}{_as_number(node, kind)}.", at)
            return
        if node.kind is Kind.SCALAR:
            self._scalar(node, part, path, at)
        elif node.kind is Kind.ARRAY:
            self._list(node, part, path, at)
        elif kind:
            self._mapping(node, part, path, at)
        for condition, message, key in part.get("rules", ()):
            kept = holds(node, condition)
            if isinstance(kept, Node):
                self.open_values.append((kept.start, kept.end))
            elif not kept:
                there = node.member(*key.split(".")) if key else None
                where = (there.key_start, there.node.end) if there is not None else at
                problem = f"{path or 'the object'} violates a rule of its kind: {message}"
                self._refuse(problem, "Change one of them.", where)

    def _mapping(self, node: Node, part: dict[str, Any], path: str, at: tuple[int, int]) -> None:
        keys: dict[str, int] = part.get("keys", {})
        values: int | None = part.get("values")
        present = set()
        for member in node.in_force:
            here = f"{path}.{member.key}" if path else member.key
            number, place = keys.get(member.key, values), (member.key_start, member.node.end)
            pattern = part.get("key-pattern")
            if pattern is not None and "{{" not in member.key and not re.search(pattern, member.key):
                self._refuse(f"`{member.key}` cannot be a key of {path}", "Correct it.", place)
            if (
                member.node.kind is Kind.SCALAR
                and member.node.value is None
                and number is not None
                and not self._parts[number].get("nullable")
            ):
                # A null is dropped, as if the key were not there.
                continue
            present.add(member.key)
            if number is not None:
                self._value(member.node, self._parts[number], here, place)
            elif not part.get("open") and not (path == "" and member.key == "status") and _is_plain(member.key):
                self._unknown(member, keys, path)
        for key in part.get("required", ()):
            if key not in present and not _has_template(node):
                empty = node.member(key)
                where = (empty.key_start, empty.node.end) if empty is not None else at
                self._refuse(f"{path or 'the object'} has no `{key}`, which is required", f"Give `{key}`.", where)
        if part.get("named") and not present & {"name", "generateName"} and not _has_template(node):
            self._refuse("the object has neither `name` nor `generateName`", "Add `name`.", at)
        self._size_text(len(node.in_force), part, "Properties", f"{path} has {len(node.in_force)} keys", at)

    def _unknown(self, member: Member, keys: dict[str, int], path: str) -> None:
        from preflight._util.usage_error import nearest

        near = nearest(member.key, keys)
        meant = f"; `{near}` is probably meant" if near else ""
        problem = f"`{member.key}` is not a field of {path or 'the object'}{meant}"
        remedy = f"Write `{near}`." if near else "Remove the field, or move it to where it belongs."
        self._refuse(problem, remedy, (member.key_start, member.node.end))

    def _list(self, node: Node, part: dict[str, Any], path: str, at: tuple[int, int]) -> None:
        items = part.get("items")
        self._size_text(len(node.items), part, "Items", f"{path} has {len(node.items)} items", at)
        seen: set[tuple[object, ...]] = set()
        for number, item in enumerate(node.items):
            if items is None:
                break
            self._value(item, self._parts[items], f"{path}[{number}]", _place_of(item))
            unique = part.get("unique")
            if unique is None:
                continue
            key = _identity(item, unique, self._parts[items].get("defaults", {}))
            if key is None:
                continue
            if key in seen:
                what = ", ".join(str(word) for word in key)
                self._refuse(f"{path} has two items `{what}`", "Rename or remove one.", _place_of(item))
            seen.add(key)

    def _scalar(self, node: Node, part: dict[str, Any], path: str, at: tuple[int, int]) -> None:
        value = node.value
        choices = part.get("enum")
        if choices is not None and value not in choices:
            listed = ", ".join(f"`{choice}`" for choice in choices[:_MAX_QUOTED])
            self._refuse(f"{_quote(path, node)} is not one of {listed}", f"Write one of {listed}.", at)
        if isinstance(value, str):
            pattern = part.get("pattern")
            if pattern is not None and not re.search(pattern, value):
                self._refuse(f"{_quote(path, node)} does not match {pattern}", "Correct it.", at)
            if part.get("format") == "date-time" and not re.match(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d", value):
                self._refuse(f"{_quote(path, node)} is not a time such as 2026-01-31T12:00:00Z", "Correct it.", at)
            self._size_text(len(value), part, "Length", f"{_quote(path, node)} has {len(value)} characters", at)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            least, most = part.get("minimum"), part.get("maximum")
            limit = _RANGES.get(part.get("format", ""))
            if least is not None and value < least:
                self._refuse(f"{_quote(path, node)} is below the minimum {least}", f"Write at least {least}.", at)
            elif most is not None and value > most:
                self._refuse(f"{_quote(path, node)} is above the maximum {most}", f"Write at most {most}.", at)
            elif limit is not None and not -limit <= value < limit:
                self._refuse(f"{_quote(path, node)} does not fit into {part['format']}", "Write less.", at)

    def _size_text(self, size: int, part: dict[str, Any], of: str, what: str, at: tuple[int, int]) -> None:
        least, most = part.get(f"min{of}"), part.get(f"max{of}")
        if least is not None and size < least:
            self._refuse(f"{what}, where at least {least} are required", f"Write at least {least}.", at)
        elif most is not None and size > most:
            self._refuse(f"{what}, where at most {most} are allowed", f"Write at most {most}.", at)


def _place_of(item: Node) -> tuple[int, int]:
    """Return where a list item is reported: at its first key, because the list itself begins at the line of its own
    key.
    """
    first = item.members[0] if item.members else None
    return (first.key_start, first.node.end) if first is not None else (item.start, item.end)


def _identity(item: Node, keys: list[str], defaults: dict[str, Any]) -> tuple[object, ...] | None:
    """Return the value that no two items of a list may share; None if it is filled in later."""
    if not keys:
        return (item.value,) if item.kind is Kind.SCALAR else None
    found = []
    for key in keys:
        node = item.at(key)
        if node is not None and node.kind is not Kind.SCALAR:
            return None
        found.append(defaults.get(key) if node is None else node.value)
    return tuple(found)


def _is_of(node: Node, kind: str) -> bool:
    if not kind:
        return True
    if node.kind is Kind.OBJECT:
        return kind == "object"
    if node.kind is Kind.ARRAY:
        return kind == "array"
    value = node.value
    if kind == "string":
        return isinstance(value, str)
    if kind == "boolean":
        return isinstance(value, bool)
    if isinstance(value, bool) or value is None:
        return False
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if kind == "integer":
        return whole
    if kind == "number":
        return isinstance(value, (int, float))
    return kind == "int-or-string" and (whole or isinstance(value, str))


def _is_plain(key: str) -> bool:
    """Return whether a key is literal: neither a placeholder nor a merge key."""
    return not re.search(r"[{}$<>\ue000]", key)


def _has_template(node: Node) -> bool:
    """Return whether keys may come from a placeholder or a merged mapping."""
    return any(not _is_plain(member.key) for member in node.members)


def _name_value(node: Node) -> str:
    if node.kind is Kind.OBJECT:
        return "a mapping"
    if node.kind is Kind.ARRAY:
        return "a list"
    if isinstance(node.value, str):
        return "a string"
    if node.value is None:
        return "null"
    if isinstance(node.value, bool):
        return "true or false"
    return "a number"


def _quote(path: str, node: Node) -> str:
    key = re.split(r"\.(?![^.]*/)", path)[-1]
    if node.kind is not Kind.SCALAR:
        return f"`{key}`"
    shown = json.dumps(node.value) if not isinstance(node.value, str) or node.value == "" else node.value
    if isinstance(node.value, str) and re.fullmatch(r"[-+.\d]+|true|false|null", node.value):
        shown = f'"{node.value}"'
    return f"`{key}: {shown[:60]}`"


def _as_number(node: Node, kind: str) -> str:
    if kind == "integer" and isinstance(node.value, str) and re.fullmatch(r"[+-]?\d{1,9}", node.value):
        return f", without quotes: {int(node.value)}"
    if kind == "string" and isinstance(node.value, (int, float)):
        return (
            f", in quotes: {json.dumps(str(node.value).lower() if isinstance(node.value, bool) else str(node.value))}"
        )
    return ""


Condition = list[Any]
_PLACEHOLDER = re.compile(r"\$[A-Za-z_{(]|\{\{|<[$%]|<[A-Za-z][^<>]*>|@\w+@|%\w+%|^_*[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+_*$")


def is_filled_in(node: Node) -> bool:
    """Return whether a string has a placeholder: `$NODES`, `job-${NAME}`, `<nodes>`, `PLACEHOLDER_NODES`."""
    return node.kind is Kind.SCALAR and isinstance(node.value, str) and _PLACEHOLDER.search(node.value) is not None


def is_open(node: Node) -> bool:
    """Return whether a value is filled in later, or cannot be read."""
    return node.kind in (Kind.TEMPLATE, Kind.BROKEN) or is_filled_in(node)


def holds(node: Node, condition: Condition) -> bool | Node:
    """Return whether a value meets a condition; or the value, filled in later, that the condition depends on."""
    name, *operands = condition
    if is_open(node):
        return node
    if name == "not":
        inner = holds(node, operands[0])
        return inner if isinstance(inner, Node) else not inner
    if name in ("and", "or"):
        found = [holds(node, operand) for operand in operands]
        return _join(found, decisive=name == "or")
    if name == "count":
        paths, least, most = operands
        return bool(least <= sum(_at(node, path) is not None for path in paths) <= most)
    there = _at(node, operands[0])
    if there is not None and is_open(there):
        return True if name == "has" else there
    if name == "has":
        return there is not None
    if name == "in":
        return (there.value if there is not None and there.kind is Kind.SCALAR else None) in operands[1]
    if there is None:
        return name in ("each", "unique", "last-only", "each-same-size") or (name == "size" and not operands[1])
    if name == "matches":
        return isinstance(there.value, str) and re.search(operands[1], there.value) is not None
    if name == "at-least":
        return isinstance(there.value, (int, float)) and there.value >= operands[1]
    if name == "size":
        size = _size(there)
        return operands[1] <= size and (operands[2] is None or size <= operands[2])
    return _item_faults(name, node, there, operands[1:])


def _item_faults(name: str, node: Node, there: Node, operands: list[Any]) -> bool | Node:
    if name in ("each", "some"):
        return _join([holds(item, operands[0]) for item in there.items], decisive=name == "some")
    if name == "each-same-size":
        return _join([_same_size(item.at(operands[0]), node.at(operands[1])) for item in there.items], decisive=False)
    if name == "last-only":
        return _last_only(there.items, *operands)
    if name == "unique":
        values = [item.value for item in there.items if item.kind is Kind.SCALAR and not is_open(item)]
        if len(values) != len(set(values)):
            return False
        return next((item for item in there.items if is_open(item)), True)
    raise ValueError(f"{name} is not a condition")


def _last_only(items: Sequence[Node], key: str, value: Any) -> bool | Node:
    """Return whether no item has this value, or the last one has it."""
    found = [_equals(item, key, value) for item in items]
    if found[-1:] == [True] or not any(match is not False for match in found[:-1]):
        return True
    if found[-1] is False and True in found:
        return False
    return next(match for match in found if isinstance(match, Node))


def _equals(item: Node, key: str, value: Any) -> bool | Node:
    """Return whether the item has this value at the key; or the value, if it is filled in later."""
    there = item if is_open(item) else item.at(key)
    if there is not None and is_open(there):
        return there
    return there is not None and there.text() == value


def _join(found: list[bool | Node], *, decisive: bool) -> bool | Node:
    """Return the result of and (`decisive` is False) or or (True)."""
    if any(item is decisive for item in found):
        return decisive
    return next((item for item in found if isinstance(item, Node)), not decisive)


def _at(node: Node, path: str) -> Node | None:
    """Return the value at a path; None if it is absent or null."""
    found = node.at(*path.split(".")) if path else node
    return None if found is None or (found.kind is Kind.SCALAR and found.value is None) else found


def _size(node: Node) -> int:
    if node.kind is Kind.SCALAR:
        return len(str(node.value))
    if node.kind is Kind.ARRAY:
        return len(node.items)
    return sum(member.node.kind is not Kind.SCALAR or member.node.value is not None for member in node.in_force)


def _same_size(one: Node | None, other: Node | None) -> bool | Node:
    for node in (one, other):
        if node is not None and is_open(node):
            return node
    if one is None or other is None or one.kind is not Kind.ARRAY or other.kind is not Kind.ARRAY:
        return True
    return len(one.items) == len(other.items)
