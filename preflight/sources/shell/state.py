"""What the shell knows at one point: variables, functions, positional parameters, directory."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING

from preflight.job import Known, Unresolved, Value
from preflight.lazy.dataclasses import dataclass
from preflight.sources.base import Variable
from preflight.sources.shell.document import Document, Hole, Place, Text
from preflight.sources.shell.text import (
    Field,
    common_ends,
    hole,
    join_texts,
    known,
    literal,
    reasons,
    spelling_of,
    strings,
    value_of,
)

if TYPE_CHECKING:
    from tree_sitter import Node


class Flow(enum.IntEnum):
    """How a statement ended; anything but NEXT means that what stands behind it is not reached."""

    NEXT = 0
    CONTINUE = 1
    BREAK = 2
    RETURN = 3
    EXIT = 4


class Kind(enum.Enum):
    """What sort of variable it is."""

    TEXT = "text"
    ARRAY = "array"
    MAP = "map"
    UNSET = "unset"


@dataclass(frozen=True, slots=True)
class Slot:
    """One variable. `place` is where its value was last written; `whole` is False after a branch that may not run."""

    kind: Kind
    place: Place
    text: Text = ()
    items: tuple[Field, ...] = ()
    pairs: tuple[tuple[str, Text], ...] = ()
    exported: bool = False
    condition: str = ""

    @property
    def is_set(self) -> bool:
        """Whether it has a value."""
        return self.kind is not Kind.UNSET

    def scalar(self) -> Text:
        """What `$NAME` gives: the text, or an array's first element."""
        if self.kind is Kind.TEXT:
            return self.text
        if self.kind is Kind.ARRAY and self.items:
            first = self.items[0]
            return element_of(first, 0)
        if self.kind is Kind.MAP:
            return next((text for key, text in self.pairs if key == "0"), ())
        return ()

    def value(self) -> Value:
        """The variable as a value; arrays become tuples of strings."""
        if self.kind is Kind.ARRAY:
            plain = strings(self.items)
            if plain is not None:
                return Known(tuple(plain))
            return Unresolved(reasons(tuple(piece for item in self.items for piece in item.text)))
        if self.kind is Kind.MAP:
            return Unresolved("an associative array")
        if self.kind is Kind.UNSET:
            return Unresolved("not set")
        return value_of(self.text)

    def spelling(self) -> str:
        """The value as the user spelled it."""
        if self.kind is Kind.ARRAY:
            return " ".join(spelling_of(item.text) for item in self.items)
        return spelling_of(self.text)


def element_of(item: Field, index: int) -> Text:
    """Element `index` counted from the start of `item`, which may stand for many words."""
    if not item.many:
        return item.text if index == 0 else ()
    from preflight.job.symbols import ALLOCATED_HOSTS, FIRST_ALLOCATED_HOST, Symbol

    why = reasons(item.text)
    if why == ALLOCATED_HOSTS:
        why = FIRST_ALLOCATED_HOST if index == 0 else Symbol.OTHER_ALLOCATED_HOST.value
    else:
        why = f"word {index + 1} of {why}"
    return hole(why, item.place, spelling_of(item.text))


@dataclass(slots=True)
class Positional:
    """`$1`, `$2` ... `fields` is None when nobody knows how the script was called."""

    fields: tuple[Field, ...] | None
    owner: str = "the script"


@dataclass(slots=True)
class State:
    """All of it. Copied where the shell forks or a branch begins; the copies are joined where branches meet."""

    variables: dict[str, Slot] = field(default_factory=dict)
    functions: dict[str, tuple[Document, Node]] = field(default_factory=dict)
    positional: Positional = field(default_factory=lambda: Positional(None))
    directory: str | None = None
    export_all: bool = False
    prelude: tuple[Field, ...] = ()
    #: The shell runs on the first node of a Slurm job (a batch script's own shell, not one started by srun).
    batch: bool = False
    #: Variables that are surely unset unless assigned: a shell whose whole environment is known.
    closed: bool = False
    locals: list[dict[str, Slot | None]] = field(default_factory=list)
    _seen: tuple[dict[str, Variable], dict[str, Variable]] | None = None
    #: Shared by all copies: each slot's contract form, made once. Holds the slot, so that its id stays its own.
    _made: dict[tuple[str, int], tuple[Slot, Variable]] = field(default_factory=dict)

    def copy(self) -> State:
        """A fork of the shell."""
        return State(
            dict(self.variables),
            dict(self.functions),
            Positional(self.positional.fields, self.positional.owner),
            self.directory,
            self.export_all,
            self.prelude,
            self.batch,
            self.closed,
            [dict(frame) for frame in self.locals],
            self._seen,
            self._made,
        )

    def adopt(self, other: State) -> None:
        """Become `other`."""
        self.variables = other.variables
        self.functions = other.functions
        self.positional = other.positional
        self.directory = other.directory
        self.export_all = other.export_all
        self.prelude = other.prelude
        self.locals = other.locals
        self._seen = None

    def get(self, name: str) -> Slot | None:
        """The variable as the script left it; None when the script never touched it."""
        return self.variables.get(name)

    def separators(self) -> str:
        """The characters that unquoted expansions are split at."""
        slot = self.variables.get("IFS")
        if slot is None or slot.kind is not Kind.TEXT:
            return " \t\n"
        found = known(slot.text)
        return " \t\n" if found is None else found[:16]

    def put(self, name: str, slot: Slot) -> None:
        """Set a variable; it stays exported when it was."""
        old = self.variables.get(name)
        if (old is not None and old.exported) or self.export_all:
            slot = replace(slot, exported=True)
        self.variables[name] = slot
        self._seen = None

    def export(self, name: str, place: Place, *, exported: bool = True) -> None:
        """Mark a variable as exported; one that comes from outside stays as it is."""
        old = self.variables.get(name)
        if old is not None:
            self.variables[name] = replace(old, exported=exported)
            self._seen = None

    def drop(self, name: str, place: Place) -> None:
        """Unset a variable."""
        self.variables[name] = Slot(Kind.UNSET, place)
        self._seen = None

    def leave_function(self) -> None:
        """Put back what the function that ends here declared `local`."""
        frame = self.locals.pop() if self.locals else {}
        for name, old in frame.items():
            if old is None:
                self.variables.pop(name, None)
            else:
                self.variables[name] = old
        self._seen = None

    def snapshot(self) -> tuple[dict[str, Variable], dict[str, Variable]]:
        """The exported variables, and all of them, as commands carry them. Shared until something changes."""
        if self._seen is None:
            everything: dict[str, Variable] = {}
            for name, slot in self.variables.items():
                if slot.is_set:
                    made = self._made.get((name, id(slot)))
                    if made is None:
                        made = self._made[(name, id(slot))] = (slot, _variable(name, slot))
                    everything[name] = made[1]
            self._seen = ({n: v for n, v in everything.items() if v.exported}, everything)
        return self._seen

    def outside(self, name: str, place: Place, spelling: str) -> Slot:
        """A variable the script never set, as something that comes from outside."""
        return Slot(Kind.TEXT, place, hole(f"${name} comes from outside", place, spelling, many=True))


def _variable(name: str, slot: Slot) -> Variable:
    return Variable(name, slot.value(), slot.place.span, slot.spelling(), slot.exported, slot.condition)


def text_slot(text: Text, place: Place) -> Slot:
    """A plain variable."""
    return Slot(Kind.TEXT, place, text)


def join_states(states: Sequence[State], into: State, condition: str) -> None:
    """Make `into` what holds after the branches `states` meet."""
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
    into.export_all = any(state.export_all for state in states)
    longest = max(states, key=lambda state: len(state.prelude))
    into.prelude = longest.prelude
    into.locals = max(states, key=lambda state: len(state.locals)).locals
    into._seen = None


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
            why = f"${name} from outside" + (f", else {shown}" if shown else "")
            filled.append(Slot(Kind.TEXT, sample.place, hole(why, sample.place, f"${name}", many=True)))
    exported = any(slot.exported for slot in filled)
    changed = sample.condition or condition
    kinds = {slot.kind for slot in filled if slot.is_set}
    if not kinds:
        return replace(sample, exported=exported)
    if kinds == {Kind.ARRAY}:
        items = _join_items([slot.items for slot in filled], sample.place, f"${{{name}[@]}}")
        return Slot(Kind.ARRAY, sample.place, items=items, exported=exported, condition=changed)
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


def from_environment(variables: Mapping[str, Variable], file: Place) -> dict[str, Slot]:
    """Shell variables for what a caller says the environment holds."""
    slots: dict[str, Slot] = {}
    for name, variable in variables.items():
        value = variable.value
        if isinstance(value, Known):
            text = literal(str(value.value), file, str(value.value))
        elif isinstance(value, Unresolved):
            text = hole(value.why, file, variable.spelling or f"${name}", many=True)
        else:
            text = join_texts([literal(str(item), file) for item in value.values], file, f"${name}")
        slots[name] = Slot(Kind.TEXT, file, text, exported=True, condition=variable.condition)
    return slots
