"""Makefiles: recipe lines that launch, with make's own variables expanded.

Only lines with a word that starts ranks, or that start a script, are evaluated, each in its own shell, as in make.
`$(NPROC)` is expanded if the Makefile sets it once (`NPROC = 8`, `:=`, `?=`); all other make syntax is unknown.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TypeAlias

from preflight._util.budget import note_skipped
from preflight.model.job import WHOLE_JOB, Scope
from preflight.sources.base import FROM_CALLER, Command, Reading, SourceFile, Tree
from preflight.sources.formats.claim_redaction import secrets_of, without_secrets
from preflight.sources.formats.comments import suppressions
from preflight.sources.shell.shell_document import FileText, Hole, Lit, Piece, Place
from preflight.sources.shell.state import Kind, Slot

_NAME = re.compile(r"(?:gnu)?makefile(?:\..*)?|.*\.mk", re.IGNORECASE)
_LAUNCHES = re.compile(
    r"torchrun|torch\.distributed|deepspeed|accelerate|paddle\.distributed|fleetrun|horovodrun|mpirun|mpiexec"
    r"|srun|composer|\bray (?:start|job)|colossalai run|fabric run|torchx run|\b(?:ba)?sh[ \t]+\S+\.sh\b|\./\S+\.sh\b"
)
_ASSIGNMENT = re.compile(
    r"^(?P<export>export[ \t]+)?(?P<name>[A-Za-z_]\w*)[ \t]*(?P<sign>[:?+]{0,2}=)[ \t]*(?P<value>.*)$"
)
#: Recipes need only one level of parentheses inside `$(shell ...)`; with more levels the hole ends early.
_USE = re.compile(
    r"\$\$|\$\((?P<round>[A-Za-z_]\w*)\)|\$\{(?P<curly>[A-Za-z_]\w*)\}"
    r"|\$\((?:[^()\n]|\([^()\n]{0,200}\)){0,400}\)|\$[^\s$]"
)
_MAX_RECIPES = 200
#: Longer lines could make reading slow; real files have shorter ones.
_MAX_LINE_LENGTH = 8192


class MakefileSource:
    """Reads one Makefile."""

    name = "makefile"
    roles = ()

    def recognises(self, file: SourceFile) -> bool:
        """Whether it has the name of a Makefile and launches something."""
        return _NAME.fullmatch(posixpath.basename(file.path)) is not None and bool(_LAUNCHES.search(file.text))

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """State the claims of the launches in its recipes."""
        from preflight.sources.launchers.launch_lines import read_commands
        from preflight.sources.shell.evaluator import evaluate_code

        text = FileText(file.path, file.text)
        values, exported = _variables(text)
        commands: list[Command] = []
        result = Reading()
        for start, end, code in _recipes(text, values):
            script = evaluate_code(file, tree, code, exported, Place(text, start, end))
            commands.extend(script.commands)
            result = replace(
                result, references=(*result.references, *script.references), notes=(*result.notes, *script.notes)
            )
        reading = read_commands(commands, {}, tree, batch=False)
        reading = replace(
            reading,
            references=(*result.references, *reading.references),
            notes=(*result.notes, *reading.notes),
            suppressions=suppressions(file),
        )
        return without_secrets(reading, secrets_of(commands))


#: Where the value of each variable is.
_Values: TypeAlias = "dict[str, tuple[int, int]]"


def _variables(text: FileText) -> tuple[_Values, dict[str, Slot]]:
    """The variables that are set once, and among them the exported plain ones as the shell sees them."""
    found: _Values = {}
    several: set[str] = set()
    exported: dict[str, Slot] = {}
    at = 0
    for line in text.text.split("\n"):
        short = not line.startswith("\t") and len(line) <= _MAX_LINE_LENGTH
        match = _ASSIGNMENT.match(line.rstrip("\r")) if short else None
        if match is not None:
            name, value = match["name"], re.sub(r"\s+#.*$", "", match["value"]).rstrip()
            if name in found or value.endswith("\\") or match["sign"] not in ("=", ":=", "?=", "::="):
                several.add(name)
            else:
                start = at + match.start("value")
                found[name] = (start, start + len(value))
                if match["export"] and "$" not in value:
                    place = Place(text, *found[name])
                    exported[name] = Slot(Kind.TEXT, place, (Lit(value, place),), exported=True)
        at += len(line) + 1
    return {name: place for name, place in found.items() if name not in several}, exported


def _recipes(text: FileText, values: _Values) -> Iterator[tuple[int, int, tuple[Piece, ...]]]:
    """The start and end of each recipe line that launches, including continued lines, and what the shell gets."""
    at, count = 0, 0
    lines = text.text.split("\n")
    index = 0
    while index < len(lines) and count < _MAX_RECIPES:
        start = at
        line = lines[index]
        index += 1
        at += len(line) + 1
        if not line.startswith("\t"):
            continue
        end = start + len(line)
        while line.rstrip("\r").endswith("\\") and index < len(lines):
            line = lines[index]
            index += 1
            at += len(line) + 1
            end = at - 1
        body = text.text[start:end]
        skipped = len(body) - len(body.lstrip("\t @+-"))
        launches = _LAUNCHES.search(body) is not None
        if not body.lstrip().startswith("#") and (launches or "$(" in body or "${" in body):
            if len(body) > 8 * _MAX_LINE_LENGTH:
                note_skipped(f"a recipe of more than {8 * _MAX_LINE_LENGTH} characters was not read")
                continue
            code = tuple(_pieces(text, start + skipped, end, values))
            if (
                not launches
                and _LAUNCHES.search("".join(piece.text for piece in code if isinstance(piece, Lit))) is None
            ):
                continue
            count += 1
            if count == _MAX_RECIPES:
                note_skipped(f"only the first {_MAX_RECIPES} recipes that launch something were read")
            yield start + skipped, end, code


#: Levels of make variables inside each other.
_MAX_DEPTH = 5


def _pieces(text: FileText, start: int, end: int, values: _Values, depth: int = 0) -> Iterator[Piece]:
    """A recipe line as the shell gets it: `$$` becomes `$`, make's own variables are expanded."""
    whole, at = text.text, start
    for match in _USE.finditer(whole, start, end):
        if match.start() > at:
            yield Lit(whole[at : match.start()], Place(text, at, match.start()))
        here = Place(text, *match.span())
        name = match["round"] or match["curly"]
        if match[0] == "$$":
            yield Lit("$", here, False)
        elif name in values and depth < _MAX_DEPTH:
            value = tuple(_pieces(text, *values[name], values, depth + 1))
            plain = value[0] if len(value) == 1 else None
            # A value of one word is located where it is used; one of several words where it is written.
            if isinstance(plain, Lit) and " " not in plain.text:
                yield Lit(plain.text, here, False, match[0])
            else:
                yield from value
        elif name is not None:
            why = f"{match[0]} is a make variable that is set outside the Makefile"
            yield Hole(why, here, match[0], many=True, origin=FROM_CALLER)
        else:
            # `$(shell ...)`, `$@`: computed by make.
            yield Hole(f"{match[0]} is computed by make", here, match[0])
        at = match.end()
    if at < end:
        yield Lit(whole[at:end], Place(text, at, end))
