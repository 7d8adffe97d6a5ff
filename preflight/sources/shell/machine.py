"""What one evaluation shares: what it found so far, where it stands, and how much it may still do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field

from preflight.job import Note, NoteKind, Reference
from preflight.lazy.dataclasses import dataclass
from preflight.sources.base import Command, Directive, SourceFile, Tree, Word, WrittenFile
from preflight.sources.shell.document import Document, Place
from preflight.sources.shell.state import State
from preflight.sources.shell.text import Field, spelling_of, value_of
from preflight.sources.shell.trace import Trace

#: Statements, words and expansions looked at in one evaluation. A long launch script needs a few thousand.
MOST_STEPS = 40_000
#: Commands one script may come to.
MOST_COMMANDS = 1_500
#: Nesting of statements, calls, sourced files and inner scripts together; keeps well inside Python's own stack.
DEEPEST = 36
#: Nesting of expansions inside one word.
DEEPEST_EXPANSION = 12
#: Turns of a loop that are followed one by one.
MOST_TURNS = 64
#: The same for loops inside loops, all turns multiplied: a parameter sweep is not told in full.
MOST_NESTED_TURNS = 128
MOST_NOTES = 200
LONGEST_CONDITION = 200


class OutOfSteps(Exception):
    """The evaluation has done all the work it may do."""


@dataclass(slots=True)
class Machine:
    """One evaluation of one script, with everything it reaches."""

    main: SourceFile
    tree: Tree
    steps: int = MOST_STEPS
    commands: list[Command] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    references: list[Reference] = field(default_factory=list)
    written: list[WrittenFile] = field(default_factory=list)
    directives: list[Directive] = field(default_factory=list)
    conditions: list[str] = field(default_factory=list)
    outer: list[Command] = field(default_factory=list)
    reading: list[str] = field(default_factory=list)
    calling: list[str] = field(default_factory=list)
    documents: dict[str, Document] = field(default_factory=dict)
    turns: list[int] = field(default_factory=list)
    repeated: int = 0
    depth: int = 0
    expansion_depth: int = 0
    quiet: int = 0
    background: bool = False
    pipe: str = ""
    trace: Trace | None = None
    _noted: set[tuple[str, int, int]] = field(default_factory=set)

    def step(self, cost: int = 1) -> None:
        """Count work done.

        Raises:
            OutOfSteps: there is no more to spend.
        """
        self.steps -= cost
        if self.steps < 0:
            raise OutOfSteps

    def note(self, kind: NoteKind, message: str, place: Place) -> None:
        """Record what limits the reading, once for each place."""
        key = (message, id(place.file), place.start)
        if key not in self._noted and len(self.notes) < MOST_NOTES:
            self._noted.add(key)
            self.notes.append(Note(kind, message, place.span))

    def refer(self, target: str, role: str, place: Place) -> None:
        """Record that the script names another file."""
        reference = Reference(target, role, place.span)
        if reference not in self.references and len(self.references) < 1000:
            self.references.append(reference)

    @contextmanager
    def under(self, condition: str) -> Iterator[None]:
        """Commands emitted inside stand under `condition`."""
        self.conditions.append(" ".join(condition.split())[:LONGEST_CONDITION])
        try:
            yield
        finally:
            self.conditions.pop()

    @contextmanager
    def standing(self, *, background: bool = False, pipe: str = "") -> Iterator[None]:
        """Commands emitted inside run in the background, or write into a pipe."""
        before = self.background, self.pipe
        self.background, self.pipe = background or self.background, pipe or self.pipe
        try:
            yield
        finally:
            self.background, self.pipe = before

    @contextmanager
    def inside(self, command: Command) -> Iterator[None]:
        """Commands emitted inside belong to a shell of their own, which `command` starts."""
        before = self.background, self.pipe
        self.background, self.pipe = False, ""
        self.outer.append(command)
        try:
            yield
        finally:
            self.outer.pop()
            self.background, self.pipe = before

    def emit(self, state: State, fields: Sequence[Field], place: Place) -> Command | None:
        """Record a command that the script would run; None where commands are not recorded (inside `$( )`)."""
        if self.quiet:
            return None
        if len(self.commands) >= MOST_COMMANDS:
            raise OutOfSteps
        self.step(1 + len(fields) // 8)
        environment, variables = state.snapshot()
        command = Command(
            tuple([word_of(item) for item in fields]),
            place.span,
            environment,
            variables,
            "; ".join(dict.fromkeys(item for item in self.conditions if item)),
            self.outer[-1] if self.outer else None,
            self.repeated > 0,
            state.directory,
            tuple(word_of(item) for item in state.prelude),
            self.background,
            self.pipe,
        )
        self.commands.append(command)
        return command


def word_of(item: Field) -> Word:
    """A field as the contract's word; `parts` only where the word is not fully known."""
    value = value_of(item.text)
    parts = () if len(item.text) <= 1 else tuple(value_of((piece,)) for piece in item.text)
    return Word(value, item.place.span, spelling_of(item.text), item.many, parts)
