"""Builtins that change the state of a shell and run no statement of their own."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from preflight.sources.base import Command
from preflight.sources.shell import arithmetic, branch_conditions, heredocs, input_words, lookup
from preflight.sources.shell.abstract_machine import Machine, Result, Written
from preflight.sources.shell.shell_document import Document, Place, Text
from preflight.sources.shell.state import Flow, Kind, Positional, Slot, State
from preflight.sources.shell.words import Field, hole, is_count, literal, skip_characters

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
        """The words that are known, with empty strings for the others."""
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
    return Flow.NEXT, branch_conditions.decide_words(invocation.target, fields)


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
        found = heredocs.standard_input(invocation.machine, invocation.state, invocation.document, invocation.redirects)
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
