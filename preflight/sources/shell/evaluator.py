"""Entry points of the shell evaluator: a script, a list of words or a piece of code becomes the commands it would run.

Nothing is executed. None of these functions raises: what cannot be followed becomes an unresolved value or a note with
its location.

At an unclosed construct, a shell stops with a syntax error. The user will fix that before the job starts, so launches
after it are still read, separately, with the final variables of the rest of the script.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from preflight.model.job import Known, NoteKind, OneOf, Unresolved
from preflight.sources.base import Command, Script, SourceFile, Tree, Variable, Word, given_variables
from preflight.sources.shell import sbatch_directives, statements
from preflight.sources.shell.abstract_machine import OUT_OF_STEPS, Machine, OutOfSteps, Trace
from preflight.sources.shell.parameter_syntax import document_of
from preflight.sources.shell.shell_document import Alt, Document, Hole, Lit, Place, Text, cover
from preflight.sources.shell.state import Positional, Slot, State, slots_from_environment
from preflight.sources.shell.words import Field, hole, literal

if TYPE_CHECKING:
    from tree_sitter import Node


#: Longer files are not launch scripts; characters after this are not read.
MAX_SCRIPT_LENGTH = 400_000
_TEMPLATE = re.compile(r"\{\{[^\n]{0,200}?\}\}|\{%[^\n]{0,200}?%\}|<%[^\n]{0,200}?%>")
#: Headers of other schedulers, whose scripts also run on the first node of an allocation.
_OTHER_BATCH = re.compile(r"^#(?:PBS|BSUB|COBALT)[ \t]+-", re.MULTILINE)
_HEAD = 20_000


def evaluate(
    file: SourceFile,
    tree: Tree,
    *,
    environment: Mapping[str, Variable] | None = None,
    arguments: Sequence[Word] = (),
    trace: Trace | None = None,
) -> Script:
    """Return every command the script would run, as far as the files determine it.

    Args:
        file: the script.
        tree: where files that it sources or runs are looked up.
        environment: variables that are set when it starts; the caller sets all others.
        arguments: its positional parameters; unknown when empty.
        trace: records how each command is written, for callers that edit the script.
    """
    text = file.text
    document = document_of(file.path, text[:MAX_SCRIPT_LENGTH])
    start = Place(document.file, 0, 0)
    machine = Machine(file, tree, statements.run_statement, _passed_environment, trace=trace)
    machine.documents[file.path] = document
    state = State()

    def run() -> None:
        machine.directives.extend(sbatch_directives.directives(document))
        state.batch = bool(machine.directives) or _OTHER_BATCH.search(text[:_HEAD]) is not None
        state.variables.update(slots_from_environment({**given_variables(file.path), **(environment or {})}, start))
        if arguments:
            state.positional = Positional(tuple(_argument(word, start) for word in arguments))
        if len(text) > MAX_SCRIPT_LENGTH:
            place = Place(document.file, MAX_SCRIPT_LENGTH, MAX_SCRIPT_LENGTH)
            message = f"the script is longer than {MAX_SCRIPT_LENGTH} characters; the rest was not checked"
            machine.add_note(NoteKind.TOO_LARGE, message, place)
        template = _TEMPLATE.search(document.text)
        if template is not None:
            place = document.place(*template.span())
            machine.add_note(NoteKind.TEMPLATE, f"{template.group()[:60]!r} is a template placeholder", place)
        placeholder = next(document.holes(), None)
        if placeholder is not None:
            message = f"{placeholder.spelling[:60]!r} is a placeholder; the shell treats `<` and `>` as redirections"
            machine.add_note(NoteKind.TEMPLATE, message, placeholder.place)
        statements.run_statement(machine, state, document, document.root)
        statements.run_uncalled(machine, state, document)
        if document.root.has_error:
            _run_lost_lines(machine, state, document)

    _run_guarded(machine, start, run)
    return _script(machine, state)


def _run_lost_lines(machine: Machine, state: State, document: Document) -> None:
    """Note unclosed constructs, and read launch lines in parts of the script that cannot be parsed."""
    for closing, node in itertools.islice(unclosed(document), MAX_LOST_LINES):
        line_start = document.text.rfind("\n", 0, node.start_byte) + 1
        opening = document.text[line_start:].partition("\n")[0].strip()[:60]
        message = f"{opening!r} is never closed by `{closing}`"
        machine.add_note(NoteKind.MALFORMED, message, document.place(node.start_byte, node.start_byte + 1))
    seen = {word.span.line for command in machine.commands for word in command.words}
    for start, end in lost_lines(document, seen):
        place = document.place(start, end)
        machine.add_note(
            NoteKind.MALFORMED,
            "the shell code around this line cannot be parsed, so the line was read on its own",
            place,
        )
        inside = Document(document.slice(start, end), place)
        statements.run_statement(machine, state.copy(), inside, inside.root)


def evaluate_words(
    file: SourceFile,
    tree: Tree,
    words: Sequence[Text],
    environment: Mapping[str, Slot],
    place: Place,
    *,
    background: bool = False,
    documents: Mapping[str, Document] | None = None,
) -> Script:
    """Evaluate a command given word by word, such as a container's `command` and `args`.

    No shell interprets it unless it names one. The words keep their location in `file`. `documents` are scripts
    embedded in other files, by the path under which `tree` finds them.
    """
    machine = Machine(file, tree, statements.run_statement, _passed_environment, background=background)
    machine.documents.update(documents or {})
    state = State(variables=dict(environment))

    def run() -> None:
        fields = [
            Field(text, cover(text, place), (len(text) == 1 and isinstance(text[0], Hole) and text[0].many))
            for text in words
        ]
        command = machine.emit(state, fields, place)
        if command is not None:
            empty = Document((), place)
            statements.follow_inner_shell(machine, state, empty, fields, (), command, place)

    _run_guarded(machine, place, run)
    return _script(machine)


def evaluate_code(
    file: SourceFile,
    tree: Tree,
    code: Text,
    environment: Mapping[str, Slot],
    place: Place,
    *,
    background: bool = False,
) -> Script:
    """Evaluate shell code inside a file of another kind, such as a Dockerfile's CMD; it keeps its location there."""
    machine = Machine(file, tree, statements.run_statement, _passed_environment, background=background)
    state = State(variables=dict(environment))

    def run() -> None:
        document = Document(code, place)
        statements.run_statement(machine, state, document, document.root)

    _run_guarded(machine, place, run)
    return _script(machine)


def _passed_environment(command: Command, tree: Tree) -> tuple[Mapping[str, Variable], frozenset[str]] | None:
    # Imported here, because the readers of launch lines use this package.
    from preflight.sources.launchers.wrappers import passed_environment

    return passed_environment(command, tree)


def _run_guarded(machine: Machine, place: Place, run: Callable[[], None]) -> None:
    """Call `run` and turn any error into a note at `place`."""
    machine.open_files.append(machine.main_file.path)
    try:
        run()
    except OutOfSteps:
        machine.add_note(NoteKind.TOO_LARGE, OUT_OF_STEPS, place)
    except RecursionError:
        machine.add_note(NoteKind.TOO_LARGE, "nested too deeply to follow; the rest was not read", place)
    except Exception as error:  # a bug here must not keep the other files from being read
        machine.add_note(NoteKind.CRASHED, f"the shell evaluator failed: {type(error).__name__}: {error}", place)
    machine.charge_budget()


def _script(machine: Machine, state: State | None = None) -> Script:
    """Return the results of the evaluation; with final variables only for a whole script, whose `state` is given."""
    return Script(
        machine.main_file.path,
        tuple(machine.commands),
        tuple(machine.directives) if state is not None else (),
        dict(state.snapshot()[1]) if state is not None else {},
        tuple(machine.references),
        tuple(machine.notes),
        tuple(machine.written_files),
        frozenset(machine.produced),
    )


def _argument(word: Word, place: Place) -> Field:
    text: Text
    if isinstance(word.value, Known):
        text = literal(str(word.value.value), place, word.spelling)
    elif isinstance(word.value, OneOf):
        choices = tuple((Lit(str(item), place, False),) for item in word.value.values)
        text = (Alt(choices, place, word.spelling),)
    elif isinstance(word.value, Unresolved):
        text = hole(word.value.why, place, word.spelling, many=word.many, origin=word.origin)
    return Field(text, place, word.many)


#: A launcher where a command may begin, after assignments and programs that start others.
_LAUNCH = re.compile(
    r"(?:^|[;&|(]|\b(?:srun|mpirun|mpiexec|exec|nohup|time|env|timeout|singularity|apptainer|docker|ssh)\b[^#]*)\s*"
    r"(?:[A-Za-z_]\w*=\S*\s+)*(?:\S*/)?"
    r"(?:torchrun|deepspeed|accelerate\s+launch|fleetrun|horovodrun|srun\s|mpirun\s|mpiexec\s"
    r"|python[\d.]*\s+(?:-\w\s+)*-m\s+(?:torch|paddle)\.distributed)"
)
#: Lines and open constructs of one script that are listed.
MAX_LOST_LINES = 50
_MAX_LINE = 8_000
#: The words that close constructs of the shell. The grammar also misses braces in expansions that the shell accepts.
_CLOSING = frozenset(("fi", "done", "esac"))


def lost_lines(document: Document, seen: Collection[int]) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each launch line in a damaged part of the script.

    Args:
        document: the script.
        seen: the lines, from 1, on which a command was read.
    """
    text = document.text
    count = 0
    for first, end in _damaged_ranges(document):
        start = text.rfind("\n", 0, first) + 1
        while start < end and count < MAX_LOST_LINES:
            stop = _logical_end(text, start)
            line = text[start:stop]
            number = document.place(start, min(start + 1, len(text))).span.line
            if (
                len(line) < _MAX_LINE
                and number not in seen
                and not line.lstrip().startswith("#")
                and _LAUNCH.search(line)
            ):
                count += 1
                yield start + len(line) - len(line.lstrip()), stop
            start = stop + 1


def unclosed(document: Document) -> Iterator[tuple[str, Node]]:
    """Yield each missing `fi`, `done` or `esac`, with the construct that lacks it, outermost first."""
    waiting: list[Node] = [document.root]
    while waiting:
        node = waiting.pop()
        if not node.has_error or node.type == "ERROR":
            continue
        for child in node.children:
            if child.is_missing and child.type in _CLOSING:
                yield child.type, node
        waiting.extend(reversed(node.children))


def _logical_end(text: str, start: int) -> int:
    """Return the end of a line, including the lines on which it continues."""
    while True:
        stop = text.find("\n", start)
        if stop < 0:
            return len(text)
        if not text[:stop].rstrip("\r").endswith("\\"):
            return stop
        start = stop + 1


def _damaged_ranges(document: Document) -> Iterator[tuple[int, int]]:
    """Yield the parts of a script that the parser did not understand, outermost first."""
    waiting: list[Node] = [document.root]
    while waiting:
        node = waiting.pop()
        if not node.has_error or node.type == "heredoc_body":
            continue
        broken = node.type in ("ERROR", "string", "array", "subscript", "command_substitution")
        if broken or any(child.is_missing for child in node.children):
            yield node.start_byte, node.end_byte
        else:
            waiting.extend(reversed(node.children))
