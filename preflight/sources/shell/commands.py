"""Simple commands: the builtins that change the shell, functions, and everything else, which is recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from preflight.job import NoteKind
from preflight.lazy.patterns import lazy_pattern
from preflight.sources.base import Command
from preflight.sources.shell import (
    arithmetic,
    conditions,
    control,
    declarations,
    expand,
    files,
    heredocs,
    inner,
)
from preflight.sources.shell.document import Document, Place, Text
from preflight.sources.shell.machine import DEEPEST, Machine
from preflight.sources.shell.state import Flow, Kind, Positional, Slot, State
from preflight.sources.shell.text import Field, after, hole, is_count, literal, spelling_of
from preflight.sources.shell.trace import Written

if TYPE_CHECKING:
    from tree_sitter import Node

Result = tuple[Flow, "bool | None"]
_NAME = lazy_pattern(r"[A-Za-z_]\w*")
_LINE_END = lazy_pattern(r"(?<!\\)\n")
_ASSIGNED = lazy_pattern(r"[A-Za-z_]\w*=")
_SETS_UP = lazy_pattern(
    r"(module|ml|spack|conda|mamba|micromamba|source|\.)\s+(load|add|use|swap|purge|activate)\b"
    r"|ml\s+\S|(source|\.)\s+\S*(activate|conda\.sh|setvars\.sh|modules?(\.sh)?|lmod\S*|spack\S*)(\s|$)"
    r"|eval\s.*(conda|mamba|modulecmd)"
)
#: Calls of one function within each other.
MOST_CALLS = 8


def run_command(machine: Machine, state: State, document: Document, node: Node, redirects: Sequence[Node]) -> Result:
    """Run one simple command."""
    written: list[Node] = []
    prefixes: list[Node] = []
    own = list(redirects)
    start = node.start_byte
    for index, child in enumerate(node.children):
        field = node.field_name_for_child(index)
        if prefixes and not written and child.type != "comment" and _on_a_later_line(document, prefixes[-1], child):
            # The grammar takes `A=1 B=2` on a line of its own for prefixes of the command on the next one.
            for each in prefixes:
                declarations.assign(machine, state, document, each)
            prefixes, start = [], child.start_byte
        if child.type == "variable_assignment":
            prefixes.append(child)
        elif field == "redirect" or child.type.endswith("_redirect"):
            own.append(child)
        elif field in ("name", "argument") and (child.is_named or child.type != "$"):
            written.append(child)
    for redirect in own:
        if redirect.type == "heredoc_redirect":
            index_of = redirect.field_name_for_child
            written += [c for i, c in enumerate(redirect.children) if index_of(i) == "argument" and c.is_named]
    place = document.place(start, node.end_byte)
    assigned = [found for each in prefixes if (found := declarations.evaluated(machine, state, document, each))]
    starts: list[int] | None = None if machine.trace is None else []
    fields = expand.fields(machine, state, document, written, starts=starts)
    heredocs.record(machine, state, document, own, fields)
    if not fields:
        for name, slot in assigned:
            state.put(name, slot)
        return Flow.NEXT, True
    target = state
    if assigned:
        target = state.copy()
        for name, slot in assigned:
            target.put(name, slot)
            target.export(name, slot.place)
    call = Call(machine, state, target, document, fields, own, place)
    if starts is not None:
        ranges = [(document.start_of(each), each.end_byte) for each in written]
        call.written = Written(document, tuple(ranges), tuple(starts), tuple(fields))
    name_of = fields[0].known
    if name_of is None:
        return record(call)
    if name_of == "builtin" and len(fields) > 1:
        fields = call.fields = fields[1:]
        name_of = fields[0].known or ""
    function = state.functions.get(name_of)
    if function is not None:
        return _call(call, name_of, *function)
    builtin = _BUILTINS.get(name_of)
    return record(call) if builtin is None else builtin(call)


def _on_a_later_line(document: Document, before: Node, node: Node) -> bool:
    """Whether a line ends between two nodes without a backslash that continues it."""
    return bool(_LINE_END.search(document.text[before.end_byte : node.start_byte]))


class Call:
    """One simple command about to run. `target` is the shell as the command sees it, with its own prefixes."""

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
        """The words where they are known, empty strings where not."""
        return [item.known or "" for item in self.fields]

    def traced(self, command: Command | None) -> None:
        """Keep how the command is written, where somebody wants to know."""
        if self.machine.trace is not None and command is not None and self.written is not None:
            self.machine.trace.wrote(command, self.written)


def record(call: Call) -> Result:
    """A program: recorded, and followed where it is a shell of its own."""
    machine, state = call.machine, call.target
    words = call.plain
    if words[0] == "env":
        state = _with_env(state, call.fields)
    command = machine.emit(state, call.fields, call.place)
    if command is not None:
        call.traced(command)
        inner.follow(machine, state, call.document, call.fields, call.redirects, command, call.place)
        _note_prelude(call, " ".join(words))
    if words[0] == "exec" and len(words) > 1:
        return Flow.EXIT, None
    return Flow.NEXT, None


def _with_env(state: State, fields: Sequence[Field]) -> State:
    """The environment behind `env -u X A=b command`."""
    changed = state.copy()
    at = 1
    while at < len(fields):
        word = fields[at].known
        text = fields[at].text
        first = getattr(text[0], "text", "") if text else ""
        if word in ("-i", "-", "--ignore-environment"):
            for name, slot in changed.variables.items():
                if slot.exported:
                    changed.export(name, slot.place, exported=False)
        elif word in ("-u", "--unset") and at + 1 < len(fields):
            at += 1
            changed.drop(fields[at].known or "", fields[at].place)
        elif word is not None and word.startswith("-"):
            pass
        elif match := _ASSIGNED.match(first):
            value = after(text, match.end())
            name = match.group()[:-1]
            changed.put(name, Slot(Kind.TEXT, fields[at].place, value))
            changed.export(name, fields[at].place)
        else:
            break
        at += 1
    return changed


def _note_prelude(call: Call, shown: str) -> None:
    if _SETS_UP.match(shown):
        text = literal(" ".join(call.document.text[call_range(call)].split()) or shown, call.place)
        call.state.prelude = (*call.state.prelude, Field(text, call.place))


def call_range(call: Call) -> slice:
    """The characters of the command in its file; nothing for an inner script."""
    if call.document.fallback.file.text is not call.document.text and len(call.document.text) != len(
        call.document.fallback.file.text
    ):
        return slice(0, 0)
    return slice(call.place.start, call.place.end)


def _call(call: Call, name: str, document: Document, body: Node) -> Result:
    machine, state = call.machine, call.target
    if machine.calling.count(name) >= MOST_CALLS or machine.depth >= DEEPEST - 2:
        machine.note(NoteKind.UNSUPPORTED, f"{name} calls itself; not followed further", call.place)
        return Flow.NEXT, None
    before = state.positional
    state.positional = Positional(tuple(call.fields[1:]), name)
    state.locals.append({})
    machine.calling.append(name)
    try:
        flow, truth = control.run(machine, state, document, body)
    finally:
        machine.calling.pop()
        state.leave_function()
        state.positional = before
    if state is not call.state:
        # VAR=x f: the assignment holds during the call only.
        held = dict(call.state.variables.items())
        prefixed = {n for n in state.variables if n not in held}
        call.state.adopt(state)
        for each in prefixed:
            call.state.variables.setdefault(each, state.variables[each])
    return (flow if flow is Flow.EXIT else Flow.NEXT), truth if flow is Flow.NEXT else None


def _cd(call: Call) -> Result:
    rest = [item for item in call.fields[1:] if item.known not in ("-P", "-L", "--")]
    call.machine.emit(call.target, call.fields, call.place)
    call.state.directory = files.change_directory(call.machine, call.state, rest[0].known if rest else None)
    return Flow.NEXT, True


def _source(call: Call) -> Result:
    machine, state = call.machine, call.state
    command = machine.emit(call.target, call.fields, call.place)
    call.traced(command)
    words = call.plain
    _note_prelude(call, " ".join(words))
    if len(call.fields) < 2:
        return Flow.NEXT, None
    path = call.fields[1].known
    place = call.fields[1].place
    if path is None:
        if not _SETS_UP.match(f"source {spelled(call.fields[1])}"):
            machine.note(NoteKind.MISSING, "which file is sourced here depends on run time", place)
        return Flow.NEXT, None
    target = files.locate(machine, state, path)
    if target is None:
        machine.note(NoteKind.OUTSIDE, f"{path} lies outside the root; what it sets is not known", place)
        return Flow.NEXT, None
    machine.refer(target, "source", place)
    found = files.read(machine, state, path)
    if found is None:
        machine.note(NoteKind.MISSING, f"{path} is not in the tree; what it sets is not known", place)
        return Flow.NEXT, None
    if machine.reading.count(target) >= 2 or len(machine.reading) >= 12:
        machine.note(NoteKind.UNSUPPORTED, f"{path} sources itself; not followed further", place)
        return Flow.NEXT, None
    if machine.trace is not None:
        machine.trace.enters(command, call.fields[1], target)
    before = state.positional
    if len(call.fields) > 2:
        state.positional = Positional(tuple(call.fields[2:]), path)
    machine.reading.append(target)
    try:
        inside = files.document(machine, found)
        flow, _ = control.run(machine, state, inside, inside.root)
    finally:
        machine.reading.pop()
        state.positional = before
    return (flow if flow is Flow.EXIT else Flow.NEXT), None


def spelled(item: Field) -> str:
    """The word as the user spelled it."""
    return spelling_of(item.text)


def _eval(call: Call) -> Result:
    if _SETS_UP.match(" ".join(["eval", *(spelled(item) for item in call.fields[1:])])):
        call.machine.emit(call.target, call.fields, call.place)
        _note_prelude(call, "eval conda")
        return Flow.NEXT, None
    text = joined(call.fields[1:], call.place)
    inside = Document(text, call.place)
    return control.run(call.machine, call.target, inside, inside.root)


def joined(fields: Sequence[Field], place: Place) -> Text:
    """Words as one command line, a blank between them."""
    pieces = []
    for number, item in enumerate(fields):
        if number:
            pieces.append(literal(" ", place, " "))
        pieces.append(item.text)
    return tuple(piece for text in pieces for piece in text)


def _set(call: Call) -> Result:
    call.machine.emit(call.target, call.fields, call.place)
    rest = call.fields[1:]
    for index, item in enumerate(rest):
        word = item.known
        if word == "--":
            call.state.positional = Positional(tuple(rest[index + 1 :]), call.state.positional.owner)
            break
        if word is None or not word.startswith(("-", "+")):
            before = (rest[index - 1].known or "") if index else ""
            if not (before.startswith(("-", "+")) and before.endswith("o")):
                call.state.positional = Positional(tuple(rest[index:]), call.state.positional.owner)
                break
            if word == "allexport":
                call.state.export_all = before.startswith("-")
        elif "a" in word:
            call.state.export_all = word.startswith("-")
    return Flow.NEXT, True


def _shift(call: Call) -> Result:
    fields = call.state.positional.fields
    count = call.fields[1].known if len(call.fields) > 1 else "1"
    if fields is not None:
        if count is None or not is_count(count) or any(item.many for item in fields[: int(count)]):
            fields = None
        else:
            fields = fields[int(count) :]
    call.state.positional = Positional(fields, call.state.positional.owner)
    if fields is None and call.state.positional.owner == "the script":
        call.state.positional.owner = "the script (shifted)"
    return Flow.NEXT, True


def _leave(flow: Flow) -> Callable[[Call], Result]:
    def leave(call: Call) -> Result:
        return flow, None

    return leave


def _truth(value: bool) -> Callable[[Call], Result]:
    def answer(call: Call) -> Result:
        return Flow.NEXT, value

    return answer


def _test(call: Call) -> Result:
    fields = call.fields[1:]
    if call.fields[0].known == "[" and fields and fields[-1].known == "]":
        fields = fields[:-1]
    return Flow.NEXT, conditions.decide_words(call.machine, call.target, fields)


def _let(call: Call) -> Result:
    for item in call.fields[1:]:
        word = item.known
        if word is not None:
            arithmetic.evaluate_text(call.machine, call.state, word, item.place)
    return Flow.NEXT, None


def _read(call: Call) -> Result:
    """`read`, `mapfile`, `getopts`: the names get something from outside."""
    for item in call.fields[1:]:
        word = item.known
        if word is not None and _NAME.fullmatch(word):
            why = f"${word} is read from the input"
            call.state.put(word, Slot(Kind.TEXT, item.place, hole(why, item.place, f"${word}", many=True)))
    return Flow.NEXT, None


def _unset(call: Call) -> Result:
    for item in call.fields[1:]:
        word = item.known
        if word is not None and _NAME.fullmatch(word):
            call.state.drop(word, item.place)
    return Flow.NEXT, True


_BUILTINS: dict[str, Callable[[Call], Result]] = {
    "cd": _cd,
    "pushd": _cd,
    "source": _source,
    ".": _source,
    "eval": _eval,
    "set": _set,
    "shift": _shift,
    "exit": _leave(Flow.EXIT),
    "return": _leave(Flow.RETURN),
    "break": _leave(Flow.BREAK),
    "continue": _leave(Flow.CONTINUE),
    "true": _truth(True),
    ":": _truth(True),
    "false": _truth(False),
    "test": _test,
    "[": _test,
    "let": _let,
    "read": _read,
    "mapfile": _read,
    "readarray": _read,
    "getopts": _read,
    "unset": _unset,
}
