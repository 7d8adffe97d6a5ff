"""Command lines in notebooks and in files of task runners: just, Task, tox.

Only lines and cells with a word that starts ranks are evaluated. Text that the runner or the notebook inserts
(`{{gpus}}`, `{posargs}`, `{n}`) is unknown.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from preflight._util.budget import note_skipped
from preflight.model.job import WHOLE_JOB, Scope
from preflight.sources.base import Command, Reading, SourceFile, Tree
from preflight.sources.configs.notebook_magics import Magics
from preflight.sources.formats.claim_redaction import secrets_of, without_secrets
from preflight.sources.formats.comments import suppressions
from preflight.sources.shell.shell_document import FileText, Hole, Lit, Piece, Place, Text

_LAUNCHES = re.compile(
    r"torchrun|torch\.distributed\.(?:run|launch)|deepspeed|accelerate launch|paddle\.distributed|fleetrun|horovodrun"
    r"|mpirun|mpiexec|\bsrun\b|composer|\bray (?:start|job)|colossalai run|fabric run|torchx run"
    r"|llamafactory-cli train|axolotl train|\bswift (?:sft|pt|rlhf)|\btune run|\btrl (?:sft|dpo|grpo)"
)
#: What Python cells start or submit.
_STARTED = re.compile(r"instance_count|notebook_launcher|mp\.spawn|ScalingConfig|[sS]ubprocess|os\.system")
_NAME = re.compile(r"\.?justfile|.*\.just|tox\.ini|taskfile\.ya?ml|.*\.ipynb", re.IGNORECASE)
_PLACEHOLDER = re.compile(r"\{\{[^{}\n]{0,200}\}\}|\{[A-Za-z_][^{}\n]{0,200}\}")
#: Cells of shell code, run or written to a script.
_SHELL_CELL = re.compile(r"%%(?:bash|sh|script\s+(?:ba)?sh|writefile\s+(?:-a\s+)?\S+\.(?:sh|bash|sbatch|slurm))\b")
_SYSTEM_CALL = re.compile(r"\s*(?:!|%sx\s|%system\s|get_ipython\(\)\.system\([\"'])")
#: The start of a command in a task file: a list item, a recipe line, or the line after `commands =`.
_ITEM = re.compile(r"[ \t]+(?:-[ \t]+)?(?:cmd:[ \t]*)?(?:[@-][ \t]*)?([\"']?)")
_MAX_COMMANDS = 200
_MAX_LENGTH = 16_384


class RecipesSource:
    """Reads one notebook, justfile, Taskfile or tox.ini."""

    name = "recipes"
    roles = ()

    def recognises(self, file: SourceFile) -> bool:
        """Whether it has such a name and launches something."""
        if _NAME.fullmatch(posixpath.basename(file.path)) is None:
            return False
        return bool(_LAUNCHES.search(file.text)) or (_is_notebook(file) and bool(_STARTED.search(file.text)))

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """State the claims of the launches in its command lines."""
        from preflight.sources.launchers.launch_lines import read_commands
        from preflight.sources.python.python_source import read_notebook
        from preflight.sources.shell.evaluator import evaluate_code

        text = FileText(file.path, file.text)
        commands: list[Command] = []
        result = Reading()
        magics = Magics()
        lines = _cells(text, file, tree, magics) if _is_notebook(file) else _recipe_lines(text)
        for number, (code, place) in enumerate(lines):
            if number == _MAX_COMMANDS:
                note_skipped(f"only the first {_MAX_COMMANDS} commands of {file.path} were read")
                break
            script = evaluate_code(file, tree, code, magics.variables, place)
            commands.extend(script.commands)
            result = replace(
                result, references=(*result.references, *script.references), notes=(*result.notes, *script.notes)
            )
        reading = read_commands(commands, {}, tree, batch=False)
        reading = replace(
            reading,
            claims=(*magics.claims, *reading.claims),
            written=tuple(magics.written.values()),
            references=(*result.references, *reading.references),
            notes=(*result.notes, *reading.notes),
            suppressions=suppressions(file) if not _is_notebook(file) else (),
        )
        reading = without_secrets(reading, secrets_of(commands))
        return _joined(reading, read_notebook(file, tree)) if _is_notebook(file) else reading


def _is_notebook(file: SourceFile) -> bool:
    return file.path.lower().endswith(".ipynb")


def _joined(first: Reading, second: Reading) -> Reading:
    return replace(
        first,
        claims=(*first.claims, *second.claims),
        launches=(*first.launches, *second.launches),
        references=(*first.references, *second.references),
        notes=(*first.notes, *second.notes),
    )


def _pieces(code: Text) -> Text:
    """The code with a hole for each placeholder that is replaced before a shell reads it."""
    pieces: list[Piece] = []
    for piece in code:
        if not isinstance(piece, Lit):
            pieces.append(piece)
            continue
        at = 0
        for match in _PLACEHOLDER.finditer(piece.text):
            if match.start() and piece.text[match.start() - 1] == "$":
                continue
            if match.start() > at:
                pieces.append(piece.cut(at, match.start()))
            cut = piece.cut(*match.span())
            pieces.append(Hole(f"{match[0]} is filled in before the command runs", cut.place, match[0]))
            at = match.end()
        if at < len(piece.text):
            pieces.append(piece.cut(at, len(piece.text)))
    return tuple(pieces)


def _recipe_lines(text: FileText) -> Iterator[tuple[Text, Place]]:
    """The command lines of a task file, continued lines included."""
    lines = text.text.split("\n")
    at = index = 0
    while index < len(lines):
        start, line = at, lines[index]
        index, at = index + 1, at + len(line) + 1
        while line.rstrip("\r").endswith("\\") and index < len(lines):
            line = lines[index]
            index, at = index + 1, at + len(line) + 1
        end = at - 1
        body = text.text[start:end]
        item = _ITEM.match(body)
        if item is None or len(body) > _MAX_LENGTH or body.lstrip().startswith("#") or not _LAUNCHES.search(body):
            continue
        stop = end - len(item[1]) if item[1] and body.endswith(item[1]) else end
        place = Place(text, start + item.end(), stop)
        yield _pieces((Lit(text.text[place.start : place.end], place),)), place


def _cells(text: FileText, file: SourceFile, tree: Tree, magics: Magics) -> Iterator[tuple[Text, Place]]:
    """The shell code of a notebook: whole `%%bash` cells, and each `!command` line; `magics` holds what earlier cells
    set up.
    """
    try:
        notebook: Any = json.loads(text.text)
        cells = notebook.get("cells") or [cell for sheet in notebook.get("worksheets", ()) for cell in sheet["cells"]]
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
        return
    at = 0
    for cell in cells if isinstance(cells, list) else ():
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        source = cell.get("source", cell.get("input", ""))
        lines = source if isinstance(source, list) else str(source).splitlines(keepends=True)
        pieces: list[Lit] = []
        for line in lines:
            piece, at = _locate_line(text, str(line), at)
            pieces.append(piece)
        magics.read(pieces, file, tree)
        if not _LAUNCHES.search("".join(piece.text for piece in pieces)):
            continue
        yield from _shell_code(pieces)


def _shell_code(lines: list[Lit]) -> Iterator[tuple[Text, Place]]:
    if lines and _SHELL_CELL.match(lines[0].text):
        yield tuple(lines[1:]), lines[0].place
        return
    index = 0
    while index < len(lines):
        first = _SYSTEM_CALL.match(lines[index].text)
        group = [lines[index]]
        index += 1
        if first is None:
            continue
        while group[-1].text.rstrip("\r\n").endswith("\\") and index < len(lines):
            group.append(lines[index])
            index += 1
        code = (group[0].cut(first.end(), len(group[0].text)), *group[1:])
        if "get_ipython" in first[0]:
            stripped = group[0].text.rstrip().removesuffix(")").rstrip("\"'")
            code = (group[0].cut(first.end(), len(stripped)),)
        if _LAUNCHES.search("".join(piece.text for piece in code)):
            yield _pieces(code), group[0].place


def _locate_line(text: FileText, line: str, start: int) -> tuple[Lit, int]:
    """A line of a cell with its location in the file, in which JSON may escape characters."""
    for ascii_only in (False, True):
        written = json.dumps(line, ensure_ascii=ascii_only)[1:-1]
        found = text.text.find(written, start) if written else -1
        if found >= 0:
            return Lit(line, Place(text, found, found + len(written)), written == line), found + len(written)
    return Lit(line, Place(text, start, start), False), start
