"""The abstract machine of one evaluation: its results, its trace, its current context, and the remaining budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from preflight._util.budget import spend
from preflight.model.job import Note, NoteKind, Reference, Span
from preflight.sources.base import Command, Directive, SourceFile, Tree, Variable, Word, WrittenFile
from preflight.sources.shell.shell_document import Document, Place, Text
from preflight.sources.shell.state import Flow, State
from preflight.sources.shell.words import Field, origin_of, spelling_of, value_of

if TYPE_CHECKING:
    from tree_sitter import Node


#: Statements, words and expansions in one evaluation. A long launch script needs a few thousand.
MAX_STEPS = 40_000
#: Commands recorded for one script.
MAX_COMMANDS = 1_500
#: Nesting of statements, calls, sourced files and inner scripts together; well below Python's recursion limit.
MAX_DEPTH = 36
#: Nesting of expansions inside one word.
MAX_EXPANSION_DEPTH = 12
#: Iterations of a loop that are followed one by one.
MAX_ITERATIONS = 64
#: The product of the iterations of nested loops; a parameter sweep is not followed in full.
MAX_NESTED_ITERATIONS = 128
MAX_NOTES = 200
MAX_CONDITION_LENGTH = 200


_CUT_OFF = (NoteKind.TOO_LARGE, NoteKind.CRASHED)
OUT_OF_STEPS = (
    f"following the script takes more than {MAX_STEPS} steps or {MAX_COMMANDS} commands; the rest was not checked: "
    "split the script, or name the one that starts the ranks"
)


#: How a statement ended, and whether it succeeded, if known.
Result: TypeAlias = tuple[Flow, "bool | None"]
RunStatement: TypeAlias = Callable[["Machine", State, Document, "Node"], Result]
#: The variables that a command's wrappers pass on, and those of them that an option names; None without wrappers.
PassedEnvironment: TypeAlias = Callable[[Command, Tree], "tuple[Mapping[str, Variable], frozenset[str]] | None"]


class OutOfSteps(Exception):
    """The evaluation has used all its steps."""


@dataclass(slots=True)
class Machine:
    """One evaluation of one script and of everything it sources, calls or starts.

    Args:
        main_file: the script.
        tree: where files are looked up.
        run_statement: `statements.run_statement`; a command substitution needs it, and `expansion` cannot import the
            module that imports it.
        steps: the remaining work.
        commands: the commands found so far; likewise `notes`, `references`, `written_files` and `directives`.
        written_texts: the text of each file that the script writes, known or not, by `script_paths.written_key`.
        conditions: the conditions under which the current statement runs, outermost first.
        outer_commands: the commands that started the current shell, outermost first.
        open_files: the files being read, outermost first.
        call_stack: the functions being called, outermost first.
        called: the functions that were called.
        calls_unknown: whether the script calls what is known only at run time, or sources a file that is not in the
            tree and may call any function.
        starts: where the current functions and shells are called or started, outermost first.
        documents: the parsed files.
        loop_sizes: the number of iterations of the current loops.
        repeat_depth: how many current loops represent any number of iterations.
        depth: nesting of statements, calls, files and shells.
        expansion_depth: nesting of expansions.
        quiet: if above zero, commands are not recorded.
        background: whether the current statement runs in the background.
        pipe: the program that reads its output through a pipe, or empty.
        input: the text on standard input, from a pipe, a file or a here-document; None if unknown.
        trace: records how commands are written; None unless requested.
    """

    main_file: SourceFile
    tree: Tree
    run_statement: RunStatement
    passed_environment: PassedEnvironment
    steps: int = MAX_STEPS
    commands: list[Command] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    references: list[Reference] = field(default_factory=list)
    written_files: list[WrittenFile] = field(default_factory=list)
    written_texts: dict[str, Text] = field(default_factory=dict)
    produced: set[str] = field(default_factory=set)
    directives: list[Directive] = field(default_factory=list)
    conditions: list[str] = field(default_factory=list)
    outer_commands: list[Command] = field(default_factory=list)
    open_files: list[str] = field(default_factory=list)
    call_stack: list[str] = field(default_factory=list)
    called: set[str] = field(default_factory=set)
    calls_unknown: bool = False
    starts: list[Span] = field(default_factory=list)
    documents: dict[str, Document] = field(default_factory=dict)
    loop_sizes: list[int] = field(default_factory=list)
    repeat_depth: int = 0
    depth: int = 0
    expansion_depth: int = 0
    quiet: int = 0
    background: bool = False
    pipe: str = ""
    input: Text | None = None
    trace: Trace | None = None
    _noted: set[tuple[str, int, int]] = field(default_factory=set)

    def step(self, cost: int = 1) -> None:
        """Count work done.

        Raises:
            OutOfSteps: the budget is spent.
        """
        self.steps -= cost
        if self.steps < 0:
            raise OutOfSteps

    def charge_budget(self) -> None:
        """Charge the work done to the budget of the file, which may have hundreds of evaluations.

        Raises:
            BudgetExceeded: the file has used its budget.
        """
        spend(MAX_STEPS - self.steps)

    def add_note(self, kind: NoteKind, message: str, place: Place) -> None:
        """Record something that limits the reading, once per location."""
        key = (message, id(place.file), place.start)
        if key not in self._noted and (len(self.notes) < MAX_NOTES or kind in _CUT_OFF):
            self._noted.add(key)
            # The rest of the script was not read, so it was not judged either.
            cut_off = kind in _CUT_OFF
            self.notes.append(Note(kind, message, place.span, required=cut_off))

    def add_reference(self, target: str, role: str, place: Place) -> None:
        """Record that the script names another file."""
        reference = Reference(target, role, place.span)
        if reference not in self.references and len(self.references) < 1000:
            self.references.append(reference)

    @property
    def condition(self) -> str:
        """Return the branches around the current statement, outermost first; empty if it always runs."""
        return "; ".join(dict.fromkeys(item for item in self.conditions if item))

    @contextmanager
    def run_conditionally(self, condition: str) -> Iterator[None]:
        """Mark commands emitted inside as run only under `condition`."""
        self.conditions.append(" ".join(condition.split())[:MAX_CONDITION_LENGTH])
        try:
            yield
        finally:
            self.conditions.pop()

    @contextmanager
    def run_in_job(self, *, background: bool = False, pipe: str = "") -> Iterator[None]:
        """Mark commands emitted inside as running in the background, or as writing into a pipe."""
        before = self.background, self.pipe
        self.background, self.pipe = background or self.background, pipe or self.pipe
        try:
            yield
        finally:
            self.background, self.pipe = before

    @contextmanager
    def run_with_input(self, text: Text | None) -> Iterator[None]:
        """Give commands that run inside `text` on their standard input."""
        before, self.input = self.input, text
        try:
            yield
        finally:
            self.input = before

    @contextmanager
    def run_in_shell(self, command: Command) -> Iterator[None]:
        """Mark commands emitted inside as run by the shell that `command` starts."""
        before = self.background, self.pipe
        self.background, self.pipe = False, ""
        self.outer_commands.append(command)
        self.starts.append(command.span)
        try:
            yield
        finally:
            self.starts.pop()
            self.outer_commands.pop()
            self.background, self.pipe = before

    def emit(self, state: State, fields: Sequence[Field], place: Place) -> Command | None:
        """Record a command that the script would run.

        Returns None inside `$( )`, where commands are not recorded.
        """
        if self.quiet:
            return None
        if len(self.commands) >= MAX_COMMANDS:
            raise OutOfSteps
        self.step(1 + len(fields) // 8)
        environment, variables = state.snapshot()
        command = Command(
            tuple([word_of(item) for item in fields]),
            place.span,
            environment,
            variables,
            self.condition,
            self.outer_commands[-1] if self.outer_commands else None,
            self.repeat_depth > 0,
            state.directory,
            tuple(word_of(item) for item in state.prelude),
            self.background,
            self.pipe,
            tuple(self.starts),
            state.positional.variables(),
            len(self.commands),
            state.is_elsewhere,
        )
        self.commands.append(command)
        return command


def word_of(item: Field) -> Word:
    """Convert a field to a `Word`; it has `parts` only when it is not fully known."""
    value = value_of(item.text)
    parts = () if len(item.text) <= 1 else tuple(value_of((piece,)) for piece in item.text)
    return Word(value, item.place.span, spelling_of(item.text), item.many, parts, origin_of(item.text))


class Written(NamedTuple):
    """The written words of one command, without redirections.

    Args:
        document: the text they are in.
        ranges: start and end of each written word in the document.
        starts: for each written word, the index of its first field; if it expanded to nothing, of the next word's.
        fields: the words after expansion, one for each of `Command.words`.
    """

    document: Document
    ranges: tuple[tuple[int, int], ...]
    starts: tuple[int, ...]
    fields: tuple[Field, ...]

    def holding(self, index: int) -> int:
        """Return the index of the written word that field `index` came from."""
        return max(at for at, start in enumerate(self.starts) if start <= index)


@dataclass(frozen=True, slots=True)
class Entered:
    """A file that a command runs; `index` is that of the command's word that names it."""

    command: Command
    index: int
    target: str


@dataclass(slots=True)
class Trace:
    """The additional records of one evaluation, besides its commands."""

    #: By the identity of the command, because equal commands may occur in several places.
    written: dict[int, Written] = field(default_factory=dict)
    entered: list[Entered] = field(default_factory=list)

    def record_words(self, command: Command, written: Written) -> None:
        """Record how `command` is written."""
        if len(written.fields) == len(command.words):
            self.written[id(command)] = written

    def record_entry(self, command: Command | None, path: Field, target: str) -> None:
        """Record that `command` reads the file `target`, which its word `path` names."""
        written = self.written.get(id(command))
        if command is None or written is None:
            return
        for index, item in enumerate(written.fields):
            if item is path:
                self.entered.append(Entered(command, index, target))
                return
