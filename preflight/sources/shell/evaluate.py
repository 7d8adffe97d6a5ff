"""The shell evaluator's door: a script in, every command it would run out. Nothing is executed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from preflight.job import Known, NoteKind, OneOf, Unresolved
from preflight.lazy.patterns import lazy_pattern
from preflight.sources.base import Script, SourceFile, Tree, Variable, Word
from preflight.sources.shell import control, slurm
from preflight.sources.shell.document import Alt, Document, Lit, Place, Text
from preflight.sources.shell.machine import Machine, OutOfSteps
from preflight.sources.shell.state import Positional, State, from_environment
from preflight.sources.shell.text import Field, hole, literal
from preflight.sources.shell.trace import Trace

#: Longer files are not launch scripts; what stands behind this is not read.
LONGEST_SCRIPT = 400_000
_TEMPLATE = lazy_pattern(r"\{\{[^\n]{0,200}?\}\}|\{%[^\n]{0,200}?%\}|<%[^\n]{0,200}?%>")


#: Headers of other schedulers: their scripts run on the first node of an allocation too.
_OTHER_BATCH = lazy_pattern(r"^#(?:PBS|BSUB|COBALT)[ \t]+-", re.MULTILINE)
_HEAD = 20_000


def evaluate(
    file: SourceFile,
    tree: Tree,
    *,
    environment: Mapping[str, Variable] | None = None,
    arguments: Sequence[Word] = (),
    trace: Trace | None = None,
) -> Script:
    """Every command the script would run, as far as that can be told from files.

    Args:
        file: the script.
        tree: where files it sources or runs are looked up.
        environment: variables known to be set when it starts; any other comes from outside.
        arguments: its positional parameters; with none given nobody knows them.
        trace: is told how each command is written, for whoever wants to change it.

    Never raises: what defeats it becomes an unresolved value or a located note.
    """
    text = file.text
    document = Document.of_file(file.path, text[:LONGEST_SCRIPT])
    machine = Machine(file, tree, trace=trace)
    machine.documents[file.path] = document
    machine.reading.append(file.path)
    state = State()
    start = Place(document.file, 0, 0)
    try:
        machine.directives.extend(slurm.directives(document))
        state.batch = bool(machine.directives) or _OTHER_BATCH.search(text[:_HEAD]) is not None
        state.variables.update(from_environment(environment or {}, start))
        if arguments:
            state.positional = Positional(tuple(_argument(word, start) for word in arguments))
        if len(text) > LONGEST_SCRIPT:
            place = Place(document.file, LONGEST_SCRIPT, LONGEST_SCRIPT)
            machine.note(NoteKind.TOO_LARGE, f"longer than {LONGEST_SCRIPT} characters; the rest was not read", place)
        template = _TEMPLATE.search(document.text)
        if template is not None:
            place = document.place(*template.span())
            machine.note(NoteKind.TEMPLATE, f"{template.group()[:60]!r} is a template's placeholder", place)
        control.run(machine, state, document, document.root)
    except OutOfSteps:
        machine.note(NoteKind.TOO_LARGE, "it does more than is worth following; the rest was not read", start)
    except RecursionError:
        machine.note(NoteKind.UNSUPPORTED, "nested too deeply to follow; the rest was not read", start)
    except Exception as error:  # a bug of ours must not cost the other files their reading
        machine.note(NoteKind.CRASHED, f"the shell evaluator failed: {type(error).__name__}: {error}", start)
    return Script(
        file.path,
        tuple(machine.commands),
        tuple(machine.directives),
        dict(state.snapshot()[1]),
        tuple(machine.references),
        tuple(machine.notes),
        tuple(machine.written),
    )


def _argument(word: Word, place: Place) -> Field:
    text: Text
    if isinstance(word.value, Known):
        text = literal(str(word.value.value), place, word.spelling)
    elif isinstance(word.value, OneOf):
        choices = tuple((Lit(str(item), place, False),) for item in word.value.values)
        text = (Alt(choices, place, word.spelling),)
    elif isinstance(word.value, Unresolved):
        text = hole(word.value.why, place, word.spelling, many=word.many)
    return Field(text, place, word.many)


__all__ = ["evaluate"]
