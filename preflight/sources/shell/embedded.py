"""Command lines that stand in files of another kind: a container's `command` and `args`, a Dockerfile's CMD.

Their characters keep their place in that file, and what they start is followed as in a script.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from preflight.job import NoteKind
from preflight.sources.base import Script, SourceFile, Tree
from preflight.sources.shell import control, inner
from preflight.sources.shell.document import Document, Place, Text, cover
from preflight.sources.shell.machine import Machine, OutOfSteps
from preflight.sources.shell.state import Slot, State
from preflight.sources.shell.text import Field

_Run: TypeAlias = Callable[[Machine, State], None]


def evaluate_words(
    file: SourceFile, tree: Tree, words: Sequence[Text], environment: Mapping[str, Slot], place: Place
) -> Script:
    """What a command comes to that is given word by word, so with no shell around it unless it names one.

    Never raises: what defeats it becomes an unresolved value or a located note.
    """

    def run(machine: Machine, state: State) -> None:
        fields = [Field(text, cover(text, place)) for text in words]
        command = machine.emit(state, fields, place)
        if command is not None:
            whole = Document((), place)
            inner.follow(machine, state, whole, fields, (), command, place)

    return _evaluated(file, tree, environment, place, run)


def evaluate_code(file: SourceFile, tree: Tree, code: Text, environment: Mapping[str, Slot], place: Place) -> Script:
    """What a piece of shell code comes to. Never raises."""

    def run(machine: Machine, state: State) -> None:
        document = Document(code, place)
        control.run(machine, state, document, document.root)

    return _evaluated(file, tree, environment, place, run)


def _evaluated(file: SourceFile, tree: Tree, environment: Mapping[str, Slot], place: Place, run: _Run) -> Script:
    machine = Machine(file, tree)
    machine.reading.append(file.path)
    state = State(variables=dict(environment))
    try:
        run(machine, state)
    except OutOfSteps:
        machine.note(NoteKind.TOO_LARGE, "it does more than is worth following; the rest was not read", place)
    except RecursionError:
        machine.note(NoteKind.UNSUPPORTED, "nested too deeply to follow; the rest was not read", place)
    except Exception as error:  # a bug of ours must not cost the rest of the file its reading
        machine.note(NoteKind.CRASHED, f"the shell evaluator failed: {type(error).__name__}: {error}", place)
    return Script(
        file.path,
        tuple(machine.commands),
        references=tuple(machine.references),
        notes=tuple(machine.notes),
        written=tuple(machine.written),
    )
