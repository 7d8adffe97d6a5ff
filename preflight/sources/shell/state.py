"""The state of a shell at one point: variables, functions, positional parameters and directory."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from preflight.model.job import Known, Unresolved, Value
from preflight.sources.base import UnknownKind, UnknownOrigin, Variable, caller_origin
from preflight.sources.shell.shell_document import Document, FileText, Hole, Place, Text
from preflight.sources.shell.words import (
    Field,
    common_ends,
    hole,
    join_texts,
    known,
    known_strings,
    literal,
    origin_of,
    reasons,
    spelling_of,
    unresolved,
    value_of,
)

if TYPE_CHECKING:
    from tree_sitter import Node


class Flow(enum.IntEnum):
    """How a statement ended; after anything but NEXT, the following statements are not reached."""

    NEXT = 0
    CONTINUE = 1
    BREAK = 2
    RETURN = 3
    EXIT = 4


class Kind(enum.Enum):
    """The kind of a shell variable."""

    TEXT = "text"
    ARRAY = "array"
    MAP = "map"
    UNSET = "unset"


@dataclass(frozen=True, slots=True)
class Slot:
    """One shell variable.

    Args:
        kind: determines which of the following fields holds its value.
        place: where it was last set.
        text: the value of a plain variable.
        items: the elements of an array.
        pairs: the keys and values of an associative array.
        exported: whether commands inherit it.
        condition: the branch that set it, if that may not run.
        branches: the arrays that different branches left, when they differ in length.
    """

    kind: Kind
    place: Place
    text: Text = ()
    items: tuple[Field, ...] = ()
    pairs: tuple[tuple[str, Text], ...] = ()
    exported: bool = False
    condition: str = ""
    branches: tuple[Slot, ...] = ()

    @property
    def is_set(self) -> bool:
        """Return whether the variable has a value."""
        return self.kind is not Kind.UNSET

    def scalar(self) -> Text:
        """Return the value of `$NAME`: the text, or the first element of an array."""
        if self.kind is Kind.TEXT:
            return self.text
        if self.kind is Kind.ARRAY and self.items:
            first = self.items[0]
            return element_of(first, 0)
        if self.kind is Kind.MAP:
            return next((text for key, text in self.pairs if key == "0"), ())
        return ()

    def value(self) -> Value:
        """Return the variable as a value; arrays become tuples of strings."""
        if self.kind is Kind.ARRAY:
            plain = known_strings(self.items)
            if plain is not None:
                return Known(tuple(plain))
            return unresolved(tuple(piece for item in self.items for piece in item.text))
        if self.kind is Kind.MAP:
            return Unresolved("an associative array")
        if self.kind is Kind.UNSET:
            return Unresolved("not set")
        return value_of(self.text)

    def spelling(self) -> str:
        """Return the value as the user wrote it."""
        if self.kind is Kind.ARRAY:
            return " ".join(spelling_of(item.text) for item in self.items)
        return spelling_of(self.text)


def element_of(item: Field, index: int) -> Text:
    """Return the element at `index` from the start of `item`, which may be several words."""
    if not item.many:
        return item.text if index == 0 else ()
    from preflight.model.job.value import ALLOCATED_HOSTS, FIRST_ALLOCATED_HOST, Symbol

    why = reasons(item.text)
    if why == ALLOCATED_HOSTS:
        why = FIRST_ALLOCATED_HOST if index == 0 else Symbol.OTHER_ALLOCATED_HOST.value
    else:
        why = f"word {index + 1} of {why}"
    return hole(why, item.place, spelling_of(item.text), origin=origin_of(item.text))


@dataclass(slots=True)
class Positional:
    """The parameters `$1`, `$2`, ...; `fields` is None when they are unknown."""

    fields: tuple[Field, ...] | None
    owner: str = "the script"

    def variables(self) -> dict[str, Variable]:
        """Return the first nine parameters by name; empty when they are unknown."""
        found: dict[str, Variable] = {}
        for number, item in enumerate((self.fields or ())[:9], start=1):
            if item.many:
                break
            found[str(number)] = Variable(str(number), item.value, item.place.span, spelling_of(item.text))
        return found


@dataclass(slots=True)
class State:
    """The whole state of a shell, copied where the shell forks or a branch begins, and joined after branches."""

    variables: dict[str, Slot] = field(default_factory=dict)
    functions: dict[str, tuple[Document, Node]] = field(default_factory=dict)
    positional: Positional = field(default_factory=lambda: Positional(None))
    directory: str | None = None
    export_all: bool = False
    prelude: tuple[Field, ...] = ()
    #: Whether the shell runs on the first node of a batch job: the script's own shell, not one that srun starts.
    batch: bool = False
    #: Whether the whole environment is known, so that a variable that was not assigned is unset.
    closed: bool = False
    #: Whether it has changed to a directory that is not known.
    is_elsewhere: bool = False
    locals: list[dict[str, Slot | None]] = field(default_factory=list)
    _snapshot: tuple[dict[str, Variable], dict[str, Variable]] | None = None
    #: Cache of converted variables, shared by all copies. It holds the slot, so that its id is not reused.
    _converted: dict[tuple[str, int], tuple[Slot, Variable]] = field(default_factory=dict)

    def copy(self) -> State:
        """Return a copy, as after a fork of the shell."""
        return State(
            dict(self.variables),
            dict(self.functions),
            Positional(self.positional.fields, self.positional.owner),
            self.directory,
            self.export_all,
            self.prelude,
            self.batch,
            self.closed,
            self.is_elsewhere,
            [dict(frame) for frame in self.locals],
            self._snapshot,
            self._converted,
        )

    def adopt(self, other: State) -> None:
        """Take over everything from `other`."""
        self.variables = other.variables
        self.functions = other.functions
        self.positional = other.positional
        self.directory = other.directory
        self.is_elsewhere = other.is_elsewhere
        self.export_all = other.export_all
        self.prelude = other.prelude
        self.locals = other.locals
        self._snapshot = None

    def get(self, name: str) -> Slot | None:
        """Return the variable as the script left it; None when the script never set it."""
        return self.variables.get(name)

    def separators(self) -> str:
        """Return the characters at which unquoted expansions are split."""
        slot = self.variables.get("IFS")
        if slot is None or slot.kind is not Kind.TEXT:
            return " \t\n"
        found = known(slot.text)
        return " \t\n" if found is None else found[:16]

    def put(self, name: str, slot: Slot) -> None:
        """Set a variable; it stays exported if it was."""
        old = self.variables.get(name)
        if (old is not None and old.exported) or self.export_all:
            slot = replace(slot, exported=True)
        self.variables[name] = slot
        self._snapshot = None

    def export(self, name: str, place: Place, *, exported: bool = True) -> None:
        """Mark a variable as exported or not; a variable that the script did not set stays as it is."""
        old = self.variables.get(name)
        if old is not None:
            self.variables[name] = replace(old, exported=exported)
            self._snapshot = None

    def unset(self, name: str, place: Place) -> None:
        """Unset a variable."""
        self.variables[name] = Slot(Kind.UNSET, place)
        self._snapshot = None

    def leave_function(self) -> None:
        """Restore the variables that the function declared `local`."""
        frame = self.locals.pop() if self.locals else {}
        for name, old in frame.items():
            if old is None:
                self.variables.pop(name, None)
            else:
                self.variables[name] = old
        self._snapshot = None

    def snapshot(self) -> tuple[dict[str, Variable], dict[str, Variable]]:
        """Return the exported variables and all variables, as commands carry them; cached until something changes."""
        if self._snapshot is None:
            all_variables: dict[str, Variable] = {}
            for name, slot in self.variables.items():
                if slot.is_set:
                    converted = self._converted.get((name, id(slot)))
                    if converted is None:
                        converted = self._converted[(name, id(slot))] = (slot, _variable(name, slot))
                    all_variables[name] = converted[1]
            self._snapshot = ({n: v for n, v in all_variables.items() if v.exported}, all_variables)
        return self._snapshot

    def external(self, name: str, place: Place, spelling: str) -> Slot:
        """Return a variable that the script never set, as a value that the caller sets."""
        text = hole(f"${name}, which the caller sets", place, spelling, many=True, origin=caller_origin(name))
        return Slot(Kind.TEXT, place, text)


def _variable(name: str, slot: Slot) -> Variable:
    value, origin = slot.value(), origin_of(slot.text)
    return Variable(name, value, slot.place.span, slot.spelling(), slot.exported, slot.condition, origin)


def text_slot(text: Text, place: Place) -> Slot:
    """Return a plain variable with this text."""
    return Slot(Kind.TEXT, place, text)


def join_states(states: Sequence[State], into: State, condition: str) -> None:
    """Set `into` to the joined state after branches that ended in `states`."""
    if len(states) == 1:
        into.adopt(states[0])
        return
    first = states[0]
    names: dict[str, None] = {}
    for state in states:
        names.update(dict.fromkeys(state.variables))
    merged: dict[str, Slot] = {}
    for name in names:
        slots = [state.variables.get(name) for state in states]
        head = slots[0]
        if head is not None and all(slot is head for slot in slots):
            merged[name] = head
        else:
            merged[name] = _join_slots(name, slots, condition, closed=first.closed)
    functions: dict[str, tuple[Document, Node]] = {}
    for state in states:
        functions.update(state.functions)
    into.variables = merged
    into.functions = functions
    positions = first.positional.fields
    if any(state.positional.fields != positions for state in states):
        positions = None
    into.positional = Positional(positions, first.positional.owner)
    into.directory = first.directory if all(s.directory == first.directory for s in states) else None
    into.is_elsewhere = into.directory is None and any(s.is_elsewhere or s.directory is not None for s in states)
    into.export_all = any(state.export_all for state in states)
    longest = max(states, key=lambda state: len(state.prelude))
    into.prelude = longest.prelude
    into.locals = max(states, key=lambda state: len(state.locals)).locals
    into._snapshot = None


def _join_slots(name: str, slots: Sequence[Slot | None], condition: str, *, closed: bool) -> Slot:
    present = [slot for slot in slots if slot is not None]
    sample = next((slot for slot in present if slot.is_set), present[0])
    filled: list[Slot] = []
    for slot in slots:
        if slot is not None:
            filled.append(slot)
        elif closed:
            filled.append(Slot(Kind.UNSET, sample.place))
        else:
            shown = sample.spelling()
            why = f"${name}, set by the caller" + (f", else {shown}" if shown else "")
            origin = UnknownOrigin(UnknownKind.SOMETIMES_CALLER, variable=name)
            filled.append(Slot(Kind.TEXT, sample.place, hole(why, sample.place, f"${name}", many=True, origin=origin)))
    if any(slot.kind is Kind.ARRAY for slot in present):
        # An array that a branch sets and another leaves to the caller: there it may be any words.
        filled = [
            Slot(Kind.ARRAY, slot.place, items=(Field(slot.text, slot.place, True),))
            if given is None and slot.is_set
            else slot
            for given, slot in zip(slots, filled, strict=True)
        ]
    exported = any(slot.exported for slot in filled)
    changed = sample.condition or condition
    kinds = {slot.kind for slot in filled if slot.is_set}
    if not kinds:
        return replace(sample, exported=exported)
    if kinds == {Kind.ARRAY}:
        items = _join_items([slot.items for slot in filled], sample.place, f"${{{name}[@]}}")
        branches = _branches_of(filled)
        return Slot(Kind.ARRAY, sample.place, items=items, exported=exported, condition=changed, branches=branches)
    if kinds == {Kind.TEXT}:
        text = join_texts([slot.text for slot in filled], sample.place, f"${name}")
        return Slot(Kind.TEXT, sample.place, text, exported=exported, condition=changed)
    if kinds == {Kind.MAP}:
        keys = dict.fromkeys(key for slot in filled for key, _ in slot.pairs)
        pairs = tuple(
            (
                key,
                join_texts([dict(slot.pairs).get(key, ()) for slot in filled], sample.place, f"${{{name}[{key}]}}"),
            )
            for key in keys
        )
        return Slot(Kind.MAP, sample.place, pairs=pairs, exported=exported, condition=changed)
    text = hole(f"${name} depends on a branch", sample.place, f"${name}", many=True)
    return Slot(Kind.TEXT, sample.place, text, exported=exported, condition=changed)


#: Arrays of different branches that are kept separately.
_MAX_BRANCHES = 6


def _branches_of(slots: Sequence[Slot]) -> tuple[Slot, ...]:
    """Return the arrays that the branches left; empty if they have the same length, or if there are too many."""
    found = tuple(dict.fromkeys(branch for slot in slots for branch in slot.branches or (slot,)))
    lengths = {len(branch.items) for branch in found}
    return found if len(lengths) > 1 and len(found) <= _MAX_BRANCHES else ()


def _join_items(lists: Sequence[tuple[Field, ...]], place: Place, spelling: str) -> tuple[Field, ...]:
    first = lists[0]
    shortest = min(len(items) for items in lists)
    if all(len(items) == shortest for items in lists):
        joined = []
        for column in zip(*lists, strict=True):
            head = column[0]
            if all(item == head for item in column):
                joined.append(head)
            else:
                text = join_texts([item.text for item in column], head.place, spelling)
                joined.append(Field(text, head.place, any(item.many for item in column)))
        return tuple(joined)
    head_length, tail = common_ends(lists)
    shown: list[str] = []
    for items in lists:
        middle = items[head_length : len(items) - tail]
        shown.append(" ".join(spelling_of(item.text) for item in middle) or "nothing")
    why = " or ".join(repr(item) if item != "nothing" else item for item in dict.fromkeys(shown))
    gap = Field((Hole(f"{why}, depending on a branch"[:300], place, spelling, True),), place, True)
    return (*first[:head_length], gap, *(first[len(first) - tail :] if tail else ()))


def slots_from_environment(variables: Mapping[str, Variable], file: Place) -> dict[str, Slot]:
    """Convert environment variables to shell variables."""
    slots: dict[str, Slot] = {}
    for name, variable in variables.items():
        value = variable.value
        if isinstance(value, Known):
            text = literal(str(value.value), file, str(value.value))
        elif isinstance(value, Unresolved):
            text = hole(value.why, file, variable.spelling or f"${name}", many=True, origin=variable.origin)
        else:
            text = join_texts([literal(str(item), file) for item in value.values], file, f"${name}")
        slots[name] = Slot(Kind.TEXT, file, text, exported=True, condition=variable.condition)
    return slots


def place_of(variable: Variable, file: FileText) -> Place:
    """Return the place of a variable in the file that its span is in."""
    lines = file.text.split("\n")
    start = sum(len(line) + 1 for line in lines[: variable.span.line - 1]) + variable.span.column - 1
    return Place(file, start, start + len(variable.spelling))
