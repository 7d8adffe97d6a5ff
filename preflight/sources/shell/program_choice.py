"""Commands whose program depends on a branch: `if ...; then L="torchrun ..."; else L=python; fi; $L train.py`.

A value that differs between branches is one word with alternatives, as long as each alternative is one word. A launcher
and its options are a different number of words in each branch, so the command is followed once for each of them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from preflight.sources.shell.abstract_machine import Machine
from preflight.sources.shell.shell_document import Alt, Document, Lit, Text
from preflight.sources.shell.state import Kind, Slot, State
from preflight.sources.shell.words import known

if TYPE_CHECKING:
    from tree_sitter import Node

#: Alternatives of one command that are followed.
MAX_CHOICES = 6
#: Words at the start of a command that are searched for its program: `srun --label $LAUNCHER train.py`.
_MAX_WORDS = 4
_LAUNCHER = re.compile(
    r"(?:\S*/)?(?:python[\d.]*|torchrun|torchx|deepspeed|accelerate|srun|mpirun|mpiexec\S*|horovodrun|fleetrun|paddle"
    r"|colossalai|composer|ray|uv|conda|numactl|env|nohup|sudo|singularity|apptainer|docker|bash|sh|jsrun|fabric)\s"
)


class Choice(NamedTuple):
    """One alternative of a command: the variables that hold it, and its condition in words."""

    variables: dict[str, Slot]
    condition: str


def program_choices(machine: Machine, state: State, document: Document, written: Sequence[Node]) -> list[Choice]:
    """Return the alternatives of a command whose program depends on a branch; empty if it does not.

    Other variables that the same branches set get the value of the same branch.

    Args:
        machine: the evaluation.
        state: the shell as the command sees it.
        document: the script.
        written: the words of the command as written.
    """
    if machine.quiet:
        return []
    for index, word in enumerate(written[:_MAX_WORDS]):
        for name in _variables_in(document, word):
            slot = state.get(name)
            if slot is None:
                continue
            found = _alternatives(slot)
            if len(found) > 1 and (index == 0 or any(_starts_with_launcher(option) for option in found)):
                machine.step(len(found))
                return list(_choices(state, name, slot, found))
    return []


def _choices(state: State, name: str, slot: Slot, slots: Sequence[Slot]) -> Iterator[Choice]:
    branch = _branch_of(state, slot)
    same = [other for other in state.variables.values() if branch and other.condition == branch]
    # A value keeps its alternatives where it is used in another one (`CMD="$L train.py"`), but not its place.
    pieces = (piece for other in (*same, slot) for piece in other.text if isinstance(piece, Alt))
    choices = {piece.options for piece in pieces if len(piece.options) == len(slots)}
    for index, option in enumerate(slots[:MAX_CHOICES]):
        variables = {}
        for other, of_other in state.variables.items():
            if of_other in same and len(of_other.branches) == len(slots):
                variables[other] = replace(of_other.branches[index], condition=of_other.condition)
            elif any(isinstance(piece, Alt) and piece.options in choices for piece in of_other.text):
                variables[other] = replace(of_other, text=_with_alternative(of_other.text, choices, index))
        variables[name] = replace(option, text=_with_alternative(option.text, choices, index))
        yield Choice(variables, _condition(name, option))


def _with_alternative(text: Text, choices: Collection[tuple[Text, ...]], index: int) -> Text:
    """Return the text with each of `choices` replaced by one alternative."""
    return tuple(
        inner
        for piece in text
        for inner in (piece.options[index] if isinstance(piece, Alt) and piece.options in choices else (piece,))
    )


def _branch_of(state: State, slot: Slot) -> str:
    """Return the condition of the branches that the alternatives of a variable come from.

    A variable built from another one (`CMD="$L train.py"`) has none of its own.
    """
    if slot.condition:
        return slot.condition
    choices = [piece for piece in slot.text if isinstance(piece, Alt)][:1]
    for other in state.variables.values():
        if other.condition and choices and [*other.text] == choices:
            return other.condition
    return ""


def _variables_in(document: Document, word: Node) -> Iterator[str]:
    """Yield the variable that a word begins with: `$L`, `${L}`, `"${L[@]}"`."""
    inner = word
    while inner.type in ("command_name", "string", "concatenation") and inner.named_child_count:
        inner = inner.named_children[0]
    if inner.type not in ("simple_expansion", "expansion"):
        return
    for child in inner.named_children[:1]:
        target = child.child_by_field_name("name") if child.type == "subscript" else child
        if target is not None and target.type == "variable_name":
            yield document.text_of(target)


def _alternatives(slot: Slot) -> tuple[Slot, ...]:
    """Return the values that a variable has after different branches, if they may begin with different programs."""
    if slot.branches:
        return tuple(replace(branch, condition=slot.condition) for branch in slot.branches)
    at = next((index for index, piece in enumerate(slot.text) if isinstance(piece, Alt)), None)
    if at is None or not _is_before_program(slot.text[:at]):
        return ()
    choice = slot.text[at]
    if not isinstance(choice, Alt) or not any(_holds_blank(option) for option in choice.options):
        return ()
    return tuple(replace(slot, text=(*slot.text[:at], *option, *slot.text[at + 1 :])) for option in choice.options)


def _is_before_program(text: Text) -> bool:
    """Whether the alternatives are preceded only by blanks, or by one word that itself starts a program."""
    before = known(text)
    return before is not None and (not before.strip() or _LAUNCHER.match(before.strip() + " ") is not None)


def _holds_blank(text: Text) -> bool:
    return not text or any(isinstance(piece, Lit) and any(c in " \t\n" for c in piece.text) for piece in text)


def _starts_with_launcher(slot: Slot) -> bool:
    return _LAUNCHER.match(_shown(slot) + " ") is not None


def _shown(slot: Slot) -> str:
    if slot.kind is Kind.ARRAY:
        return " ".join(item.known or "?" for item in slot.items)
    return slot.spelling().strip()


def _condition(name: str, slot: Slot) -> str:
    shown = " ".join(_shown(slot).split())
    return f"{name} is {shown[:80]!r}" if shown else f"{name} is empty"
