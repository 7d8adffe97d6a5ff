"""Makefiles: recipe lines that launch, with what make's own variables put into them.

Only lines with a word that starts ranks are evaluated; each as a shell of its own, as make does. `$(NPROC)` is put in
where the Makefile sets it once and plainly (`NPROC = 8`, `:=`, `?=`); anything else of make's is not known.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import replace

from preflight.job import WHOLE_JOB, Scope
from preflight.lazy.patterns import lazy_pattern
from preflight.sources.base import Command, Reading, SourceFile, Tree
from preflight.sources.comments import suppressions
from preflight.sources.redaction import secrets_of, without_secrets
from preflight.sources.shell.document import FileText, Hole, Lit, Piece, Place
from preflight.sources.shell.state import Kind, Slot

_NAME = lazy_pattern(r"(?:gnu)?makefile(?:\..*)?|.*\.mk", re.IGNORECASE)
_LAUNCHES = lazy_pattern(
    r"torchrun|torch\.distributed|deepspeed|accelerate|paddle\.distributed|fleetrun|horovodrun|mpirun|mpiexec"
    r"|srun|composer|\bray (?:start|job)|colossalai run|fabric run|torchx run"
)
_ASSIGNMENT = lazy_pattern(
    r"^(?P<export>export[ \t]+)?(?P<name>[A-Za-z_]\w*)[ \t]*(?P<sign>[:?+]{0,2}=)[ \t]*(?P<value>.*)$"
)
#: One level of parentheses inside `$(shell ...)` is enough for what recipes hold; more ends the hole early.
_USE = lazy_pattern(
    r"\$\$|\$\((?P<round>[A-Za-z_]\w*)\)|\$\{(?P<curly>[A-Za-z_]\w*)\}"
    r"|\$\((?:[^()\n]|\([^()\n]{0,200}\)){0,400}\)|\$[^\s$]"
)
_MOST_RECIPES = 200
#: Longer lines are no one's, and could make reading them slow.
_LONGEST_LINE = 8192


class MakefileSource:
    """Reads one Makefile."""

    name = "makefile"
    roles = ()

    def recognises(self, file: SourceFile) -> bool:
        """Whether it is called so and launches something."""
        return _NAME.fullmatch(posixpath.basename(file.path)) is not None and bool(_LAUNCHES.search(file.text))

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """State what the launches of its recipes claim."""
        from preflight.sources.launchers.reading import read_commands
        from preflight.sources.shell.embedded import evaluate_code

        text = FileText(file.path, file.text)
        values, exported = _variables(text)
        commands: list[Command] = []
        result = Reading()
        for start, end in _recipes(file.text):
            code = tuple(_pieces(text, start, end, values))
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


def _variables(text: FileText) -> tuple[dict[str, Lit], dict[str, Slot]]:
    """The variables that are set once and plainly; those of them that are exported, as the shell sees them."""
    found: dict[str, Lit] = {}
    several: set[str] = set()
    exported: dict[str, Slot] = {}
    at = 0
    for line in text.text.split("\n"):
        short = not line.startswith("\t") and len(line) <= _LONGEST_LINE
        match = _ASSIGNMENT.match(line.rstrip("\r")) if short else None
        if match is not None:
            name, value = match["name"], re.sub(r"\s+#.*$", "", match["value"]).rstrip()
            if name in found or "$" in value or value.endswith("\\") or match["sign"] not in ("=", ":=", "?=", "::="):
                several.add(name)
            else:
                start = at + match.start("value")
                found[name] = Lit(value, Place(text, start, start + len(value)))
                if match["export"]:
                    exported[name] = Slot(Kind.TEXT, found[name].place, (found[name],), exported=True)
        at += len(line) + 1
    return {name: lit for name, lit in found.items() if name not in several}, exported


def _recipes(text: str) -> Iterator[tuple[int, int]]:
    """Where each recipe line that launches begins and ends, continued lines included."""
    at, count = 0, 0
    lines = text.split("\n")
    index = 0
    while index < len(lines) and count < _MOST_RECIPES:
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
        body = text[start:end]
        skipped = len(body) - len(body.lstrip("\t @+-"))
        if len(body) <= 8 * _LONGEST_LINE and _LAUNCHES.search(body) and not body.lstrip().startswith("#"):
            count += 1
            yield start + skipped, end


def _pieces(text: FileText, start: int, end: int, values: dict[str, Lit]) -> Iterator[Piece]:
    """A recipe line as the shell gets it: `$$` is `$`, make's own variables are put in."""
    whole, at = text.text, start
    for match in _USE.finditer(whole, start, end):
        if match.start() > at:
            yield Lit(whole[at : match.start()], Place(text, at, match.start()))
        here = Place(text, *match.span())
        name = match["round"] or match["curly"]
        if match[0] == "$$":
            yield Lit("$", here, False)
        elif name in values:
            yield Lit(values[name].text, here, False, match[0])
        elif name is not None:
            yield Hole(f"{match[0]} is a variable of make that comes from outside", here, match[0], many=True)
        else:
            # `$(shell ...)`, `$@`: computed by make.
            yield Hole(f"{match[0]} is computed by make", here, match[0])
        at = match.end()
    if at < end:
        yield Lit(whole[at:end], Place(text, at, end))
