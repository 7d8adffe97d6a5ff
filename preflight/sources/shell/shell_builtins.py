"""Builtins that change the state of a shell: assignments, `export`, `declare`, `local`, and those that run no
statement.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from preflight.sources.base import Command
from preflight.sources.shell import arithmetic, branch_conditions, input_words, lookup
from preflight.sources.shell.abstract_machine import Machine, Result, Written
from preflight.sources.shell.expansion import expand_text, expand_words
from preflight.sources.shell.lookup import look_up
from preflight.sources.shell.shell_document import Document, Place, Text
from preflight.sources.shell.state import Flow, Kind, Positional, Slot, State
from preflight.sources.shell.words import (
    Field,
    hole,
    is_count,
    known,
    known_strings,
    limit_size,
    literal,
    skip_characters,
)

if TYPE_CHECKING:
    from tree_sitter import Node

NAME = re.compile(r"[A-Za-z_]\w*")
_ALIAS = re.compile(r"([\w-]+)=")


class Invocation:
    """One simple command about to run. `target` is the shell as the command sees it, with its own assignments."""

    __slots__ = ("document", "fields", "machine", "place", "redirects", "state", "target", "written")

    def __init__(
        self,
        machine: Machine,
        state: State,
        target: State,
        document: Document,
        fields: list[Field],
        redirects: Sequence[Node],
        place: Place,
    ) -> None:
        self.machine = machine
        self.state = state
        self.target = target
        self.document = document
        self.fields = fields
        self.redirects = redirects
        self.place = place
        self.written: Written | None = None

    @property
    def plain(self) -> list[str]:
        """Return the words that are known, with empty strings for the others."""
        return [item.known or "" for item in self.fields]

    def traced(self, command: Command | None) -> None:
        """Record how the command is written, when a trace is wanted."""
        if self.machine.trace is not None and command is not None and self.written is not None:
            self.machine.trace.record_words(command, self.written)


def _cd(invocation: Invocation) -> Result:
    rest = [item for item in invocation.fields[1:] if item.known not in ("-P", "-L", "--")]
    invocation.machine.emit(invocation.target, invocation.fields, invocation.place)
    invocation.state.directory = lookup.change_directory(
        invocation.machine, invocation.state, rest[0].known if rest else None
    )
    invocation.state.is_elsewhere = invocation.state.directory is None
    return Flow.NEXT, True


def _set(invocation: Invocation) -> Result:
    invocation.machine.emit(invocation.target, invocation.fields, invocation.place)
    rest = invocation.fields[1:]
    for index, item in enumerate(rest):
        word = item.known
        if word == "--":
            invocation.state.positional = Positional(tuple(rest[index + 1 :]), invocation.state.positional.owner)
            break
        if word is None or not word.startswith(("-", "+")):
            before = (rest[index - 1].known or "") if index else ""
            if not (before.startswith(("-", "+")) and before.endswith("o")):
                invocation.state.positional = Positional(tuple(rest[index:]), invocation.state.positional.owner)
                break
            if word == "allexport":
                invocation.state.export_all = before.startswith("-")
        elif "a" in word:
            invocation.state.export_all = word.startswith("-")
    return Flow.NEXT, True


def _shift(invocation: Invocation) -> Result:
    fields = invocation.state.positional.fields
    count = invocation.fields[1].known if len(invocation.fields) > 1 else "1"
    if fields is not None:
        if count is None or not is_count(count) or any(item.many for item in fields[: int(count)]):
            fields = None
        else:
            fields = fields[int(count) :]
    invocation.state.positional = Positional(fields, invocation.state.positional.owner)
    if fields is None and invocation.state.positional.owner == "the script":
        invocation.state.positional.owner = "the script (shifted)"
    return Flow.NEXT, True


def _end_with(flow: Flow) -> Callable[[Invocation], Result]:
    def end(invocation: Invocation) -> Result:
        return flow, None

    return end


def _return_truth(value: bool) -> Callable[[Invocation], Result]:
    def return_truth(invocation: Invocation) -> Result:
        return Flow.NEXT, value

    return return_truth


def _test(invocation: Invocation) -> Result:
    fields = invocation.fields[1:]
    if invocation.fields[0].known == "[" and fields and fields[-1].known == "]":
        fields = fields[:-1]
    return Flow.NEXT, branch_conditions.decide_words(invocation.machine, invocation.target, fields)


def _let(invocation: Invocation) -> Result:
    for item in invocation.fields[1:]:
        word = item.known
        if word is not None:
            arithmetic.evaluate_expression(invocation.machine, invocation.state, word, item.place)
    return Flow.NEXT, None


def _read(invocation: Invocation) -> Result:
    """Run `read`, `mapfile` or `getopts`: without known input the named variables get an unknown value."""
    name = invocation.plain[0]
    text: Text | None = None
    if name != "getopts":
        found = input_words.standard_input(
            invocation.machine, invocation.state, invocation.document, invocation.redirects
        )
        text = found if invocation.redirects else None
    if name in ("mapfile", "readarray"):
        input_words.assign_array(invocation.state, invocation.fields, text, invocation.place)
        return Flow.NEXT, None
    reader = input_words.parse(invocation.fields)
    if text and reader.whole:
        input_words.assign_whole(invocation.state, reader, text, invocation.place)
        # It ends at the end of the input, which is no success.
        return Flow.NEXT, False
    if text and reader.plain:
        line = next(input_words.lines_of(text))
        separators = invocation.target.separators()
        input_words.assign_line(invocation.state, reader, line, separators, invocation.place)
        return Flow.NEXT, True
    for item in invocation.fields[1:]:
        word = item.known
        if word is not None and NAME.fullmatch(word):
            why = f"${word} is read from the input"
            invocation.state.put(word, Slot(Kind.TEXT, item.place, hole(why, item.place, f"${word}", many=True)))
    return Flow.NEXT, None


def _alias(invocation: Invocation) -> Result:
    """Run `alias NAME='command'`: the name is then a function of all its arguments."""
    for item in invocation.fields[1:]:
        match = _ALIAS.match(item.known or "")
        if match is not None:
            place = item.place
            code = (*skip_characters(item.text, match.end()), *literal(' "$@"', place))
            inside = Document(code, place)
            invocation.state.functions[match[1]] = (inside, inside.root)
    return Flow.NEXT, True


def _unset(invocation: Invocation) -> Result:
    for item in invocation.fields[1:]:
        word = item.known
        if word is not None and NAME.fullmatch(word):
            invocation.state.unset(word, item.place)
    return Flow.NEXT, True


BUILTINS: dict[str, Callable[[Invocation], Result]] = {
    "cd": _cd,
    "pushd": _cd,
    "set": _set,
    "shift": _shift,
    "exit": _end_with(Flow.EXIT),
    "return": _end_with(Flow.RETURN),
    "break": _end_with(Flow.BREAK),
    "continue": _end_with(Flow.CONTINUE),
    "true": _return_truth(True),
    ":": _return_truth(True),
    "false": _return_truth(False),
    "test": _test,
    "[": _test,
    "let": _let,
    "read": _read,
    "mapfile": _read,
    "readarray": _read,
    "getopts": _read,
    "unset": _unset,
    "alias": _alias,
}


_KEYED = re.compile(r"\[([^\]\s]+)\]=(.*)", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_]\w*")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
MAX_ELEMENTS = 2_000


def assign(machine: Machine, state: State, document: Document, node: Node) -> Flow:
    """Execute an assignment: `NAME=value`, `NAME+=value`, `NAME[i]=value` or `NAME=(...)`."""
    named = evaluate_assignment(machine, state, document, node)
    if named is not None:
        name, slot = named
        state.put(name, slot)
    return Flow.NEXT


def evaluate_assignment(machine: Machine, state: State, document: Document, node: Node) -> tuple[str, Slot] | None:
    """Return the name that an assignment sets and its new value, without setting it."""
    target = node.child_by_field_name("name")
    value = node.child_by_field_name("value")
    if target is None:
        return None
    place = document.place_of(node)
    appends = any(child.type == "+=" for child in node.children)
    if target.type == "subscript":
        return _element(machine, state, document, node, target, value, appends=appends)
    name = document.text_of(target).strip()
    if value is not None and value.type == "array":
        return name, _array(machine, state, document, name, value, place, appends=appends)
    text = expand_text(machine, state, document, value) if value is not None else ()
    return name, _scalar(machine, state, name, text, place, appends=appends)


def _scalar(machine: Machine, state: State, name: str, text: Text, place: Place, *, appends: bool) -> Slot:
    if not appends:
        return Slot(Kind.TEXT, place, text)
    old = look_up(machine, state, name, place, f"${name}")
    if old.kind is Kind.ARRAY:
        items = old.items
        if items:
            items = (replace(items[0], text=items[0].text + text), *items[1:])
        return Slot(Kind.ARRAY, place, items=items)
    return Slot(Kind.TEXT, place, limit_size(old.scalar() + text, place, f"${name}"))


def _array(
    machine: Machine, state: State, document: Document, name: str, node: Node, place: Place, *, appends: bool
) -> Slot:
    items = expand_words(machine, state, document, [c for c in node.named_children if c.type != "comment"])
    machine.step(len(items) // 4)
    old = state.get(name)
    plain = known_strings(items)
    if (old is not None and old.kind is Kind.MAP) or (plain and all(_KEYED.fullmatch(item) for item in plain)):
        pairs = dict(old.pairs) if old is not None and old.kind is Kind.MAP and appends else {}
        for item in items:
            keyed = _KEYED.fullmatch(item.known or "")
            if keyed is not None:
                pairs[keyed.group(1)] = skip_characters(item.text, len(item.known or "") - len(keyed.group(2)))
        return Slot(Kind.MAP, place, pairs=tuple(pairs.items()))
    if appends and old is not None and old.is_set:
        before = old.items if old.kind is Kind.ARRAY else (Field(old.text, old.place),)
        branches = tuple(replace(branch, items=(*branch.items, *items)[:MAX_ELEMENTS]) for branch in old.branches)
        return Slot(Kind.ARRAY, place, items=(*before, *items)[:MAX_ELEMENTS], branches=branches)
    return Slot(Kind.ARRAY, place, items=tuple(items[:MAX_ELEMENTS]))


def _element(
    machine: Machine,
    state: State,
    document: Document,
    node: Node,
    target: Node,
    value: Node | None,
    *,
    appends: bool,
) -> tuple[str, Slot] | None:
    base, index = target.child_by_field_name("name"), target.child_by_field_name("index")
    if base is None or index is None:
        return None
    name, place = document.text_of(base), document.place_of(node)
    text = expand_text(machine, state, document, value) if value is not None else ()
    old = state.get(name)
    key = known(expand_text(machine, state, document, index))
    if old is not None and old.kind is Kind.MAP:
        if key is None:
            return name, Slot(Kind.TEXT, place, hole(f"${name} has unknown keys", place, f"${name}", many=True))
        pairs = dict(old.pairs)
        pairs[key] = pairs.get(key, ()) + text if appends else text
        return name, Slot(Kind.MAP, place, pairs=tuple(pairs.items()))
    number = known(arithmetic.evaluate_expression(machine, state, key, place)) if key is not None else None
    items = old.items if old is not None and old.kind is Kind.ARRAY else ()
    if key is not None and old is None and _NAME.fullmatch(key) and state.get(key) is None:
        return name, Slot(Kind.MAP, place, pairs=((key, text),))
    at = int(number) if number is not None else -1
    if number is None or not 0 <= at <= len(items) or any(item.many for item in items[: at + 1]):
        rest = hole(f"${name}[{document.text_of(index)}] is set at run time", place, document.text_of(node), many=True)
        return name, Slot(Kind.ARRAY, place, items=(*items[: max(at, 0)], Field(rest, place, True)))
    item = Field(items[at].text + text if appends and at < len(items) else text, place)
    return name, Slot(Kind.ARRAY, place, items=(*items[:at], item, *items[at + 1 :]))


def declare(machine: Machine, state: State, document: Document, node: Node) -> None:
    """Execute `export`, `declare`, `typeset`, `local`, `readonly` or `unset`."""
    keyword = document.text_of(node).split(None, 1)[0]
    flags = ""
    names: list[tuple[str, Slot | None]] = []
    for child in node.children[1:]:
        if not child.is_named or child.type == "comment":
            continue
        if child.type == "variable_assignment":
            if "A" in flags and "=" in document.text_of(child):
                target = child.child_by_field_name("name")
                if target is not None and state.get(document.text_of(target)) is None:
                    state.put(document.text_of(target), Slot(Kind.MAP, document.place_of(child)))
            found = evaluate_assignment(machine, state, document, child)
            if found is not None:
                names.append(found)
            continue
        for item in expand_words(machine, state, document, (child,)):
            word = item.known
            if word is None:
                continue
            assigned = _ASSIGNED.fullmatch(word)
            if word.startswith(("-", "+")):
                flags += word
            elif assigned is not None:
                text = skip_characters(item.text, len(word) - len(assigned.group(3)))
                slot = _scalar(machine, state, assigned.group(1), text, item.place, appends=bool(assigned.group(2)))
                names.append((assigned.group(1), slot))
            elif _NAME.fullmatch(word):
                names.append((word, None))
    _apply_declaration(state, document.place_of(node), keyword, flags, names)


def _apply_declaration(
    state: State, place: Place, keyword: str, flags: str, names: list[tuple[str, Slot | None]]
) -> None:
    if keyword in ("unset", "unsetenv"):
        for name, _ in names:
            if "f" in flags:
                state.functions.pop(name, None)
            else:
                state.unset(name, place)
        return
    if "f" in flags or "p" in flags:
        return
    is_local = keyword == "local" or (keyword in ("declare", "typeset") and state.locals and "g" not in flags)
    exports = keyword == "export" or ("x" in flags and "+" not in flags)
    for name, slot in names:
        if is_local and state.locals:
            state.locals[-1].setdefault(name, state.get(name))
        if slot is not None:
            # A local variable that shadows none starts unexported; otherwise it inherits the export mark.
            if is_local and "A" not in flags and state.locals and state.locals[-1].get(name) is None:
                state.variables.pop(name, None)
            state.put(name, slot)
        elif is_local or (keyword in ("declare", "typeset") and state.get(name) is None):
            kind = Kind.MAP if "A" in flags else Kind.ARRAY if "a" in flags else Kind.UNSET
            if is_local or kind is not Kind.UNSET:
                state.put(name, Slot(kind, place))
        if exports:
            if state.get(name) is None:
                state.put(name, state.external(name, place, f"${name}"))
            state.export(name, place, exported="n" not in flags)
