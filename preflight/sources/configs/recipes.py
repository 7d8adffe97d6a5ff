"""Command lines in Makefiles, in files of task runners (just, Task, tox) and in notebooks.

Only lines and cells with a word that starts ranks are evaluated. Text that the runner or the notebook inserts
(`{{gpus}}`, `{posargs}`, `{n}`) is unknown.

Recipe lines of a Makefile are evaluated each in its own shell, as in make. `$(NPROC)` is expanded if the Makefile sets
it once (`NPROC = 8`, `:=`, `?=`); all other make syntax is unknown.

Source of a notebook's magics: IPython 8.37, core/magics/osm.py (env, set_env, writefile): `%env NAME=value`,
`%env NAME value`, `%set_env NAME value`, `%%writefile [-a] NAME`. Text in braces or after a dollar sign is filled in
from Python.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from preflight._util.budget import note_skipped
from preflight._util.redaction import HIDDEN
from preflight._util.secret_names import is_secret
from preflight.model.job import WHOLE_JOB, Claim, Known, Scope, Strength, Unresolved, Value
from preflight.model.job.value import ENVIRONMENT_PREFIX
from preflight.sources.base import FROM_CALLER, Command, Reading, SourceFile, Tree, WrittenFile, suppressions
from preflight.sources.secrets import secrets_of, without_secrets
from preflight.sources.shell.shell_document import FileText, Hole, Lit, Piece, Place, Text
from preflight.sources.shell.state import Kind, Slot
from preflight.sources.shell.words import replace_spans

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
        """Return whether the file has the name of a notebook, justfile, Taskfile or tox.ini, and launches something."""
        if _NAME.fullmatch(posixpath.basename(file.path)) is None:
            return False
        return bool(_LAUNCHES.search(file.text)) or (_is_notebook(file) and bool(_STARTED.search(file.text)))

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """Return the claims of the launches in the file's command lines."""
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
            result = result.joined(Reading(references=script.references, notes=script.notes))
        read = read_commands(commands, {}, tree, batch=False)
        reading = replace(
            result.joined(replace(read, claims=(*magics.claims, *read.claims))),
            written=tuple(magics.written.values()),
            suppressions=suppressions(file) if not _is_notebook(file) else (),
            numbers=read.numbers,
        )
        reading = without_secrets(reading, secrets_of(commands))
        return reading.joined(read_notebook(file, tree)) if _is_notebook(file) else reading


def _is_notebook(file: SourceFile) -> bool:
    return file.path.lower().endswith(".ipynb")


def _pieces(code: Text) -> Text:
    """Return the code with a hole for each placeholder that is replaced before a shell reads it."""
    return replace_spans(
        code,
        lambda text: (m.span() for m in _PLACEHOLDER.finditer(text) if not text.endswith("$", 0, m.start())),
        lambda found: [Hole(f"{found.text} is filled in before the command runs", found.place, found.text)],
    )


def _joined_lines(text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each line, including the lines that continue it after a backslash."""
    lines, at, start = text.split("\n"), 0, 0
    for number, line in enumerate(lines):
        at += len(line) + 1
        if not line.rstrip("\r").endswith("\\") or number + 1 == len(lines):
            yield start, at - 1
            start = at


def _recipe_lines(text: FileText) -> Iterator[tuple[Text, Place]]:
    """Yield the command lines of a task file, continued lines included."""
    for start, end in _joined_lines(text.text):
        body = text.text[start:end]
        item = _ITEM.match(body)
        if item is None or len(body) > _MAX_LENGTH or body.lstrip().startswith("#") or not _LAUNCHES.search(body):
            continue
        stop = end - len(item[1]) if item[1] and body.endswith(item[1]) else end
        place = Place(text, start + item.end(), stop)
        yield _pieces((Lit(text.text[place.start : place.end], place),)), place


def _cells(text: FileText, file: SourceFile, tree: Tree, magics: Magics) -> Iterator[tuple[Text, Place]]:
    """Yield the shell code of a notebook: whole `%%bash` cells, and each `!command` line; `magics` contains the
    settings of earlier cells.
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
    """Return a line of a cell with its location in the file, where JSON may escape characters."""
    for ascii_only in (False, True):
        written = json.dumps(line, ensure_ascii=ascii_only)[1:-1]
        found = text.text.find(written, start) if written else -1
        if found >= 0:
            return Lit(line, Place(text, found, found + len(written)), written == line), found + len(written)
    return Lit(line, Place(text, start, start), False), start


_MAKEFILE_NAME = re.compile(r"(?:gnu)?makefile(?:\..*)?|.*\.mk", re.IGNORECASE)
_MAKE_LAUNCHES = re.compile(
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
        """Return whether the file has the name of a Makefile and launches something."""
        return _MAKEFILE_NAME.fullmatch(posixpath.basename(file.path)) is not None and bool(
            _MAKE_LAUNCHES.search(file.text)
        )

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """Return the claims of the launches in the file's recipes."""
        from preflight.sources.launchers.launch_lines import read_commands
        from preflight.sources.shell.evaluator import evaluate_code

        text = FileText(file.path, file.text)
        values, exported = _variables(text)
        commands: list[Command] = []
        result = Reading()
        for start, end, code in _recipes(text, values):
            script = evaluate_code(file, tree, code, exported, Place(text, start, end))
            commands.extend(script.commands)
            result = result.joined(Reading(references=script.references, notes=script.notes))
        read = read_commands(commands, {}, tree, batch=False)
        reading = replace(result.joined(read), suppressions=suppressions(file), numbers=read.numbers)
        return without_secrets(reading, secrets_of(commands))


#: Where the value of each variable is.
_Values: TypeAlias = "dict[str, tuple[int, int]]"


def _variables(text: FileText) -> tuple[_Values, dict[str, Slot]]:
    """Return the variables that are set once, and among them the exported plain ones as the shell sees them."""
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
    """Yield the start and end of each recipe line that launches, including continued lines, and the line as the shell
    sees it.
    """
    count = 0
    for start, end in _joined_lines(text.text):
        body = text.text[start:end]
        if not body.startswith("\t") or count >= _MAX_RECIPES:
            continue
        skipped = len(body) - len(body.lstrip("\t @+-"))
        launches = _MAKE_LAUNCHES.search(body) is not None
        if not body.lstrip().startswith("#") and (launches or "$(" in body or "${" in body):
            if len(body) > 8 * _MAX_LINE_LENGTH:
                note_skipped(f"a recipe of more than {8 * _MAX_LINE_LENGTH} characters was not read")
                continue
            code = tuple(_recipe_pieces(text, start + skipped, end, values))
            if (
                not launches
                and _MAKE_LAUNCHES.search("".join(piece.text for piece in code if isinstance(piece, Lit))) is None
            ):
                continue
            count += 1
            if count == _MAX_RECIPES:
                note_skipped(f"only the first {_MAX_RECIPES} recipes that launch something were read")
            yield start + skipped, end, code


#: Levels of make variables inside each other.
_MAX_DEPTH = 5


def _recipe_pieces(text: FileText, start: int, end: int, values: _Values, depth: int = 0) -> Iterator[Piece]:
    """Yield a recipe line as the shell gets it: `$$` becomes `$`, make's own variables are expanded."""
    whole, at = text.text, start
    for match in _USE.finditer(whole, start, end):
        if match.start() > at:
            yield Lit(whole[at : match.start()], Place(text, at, match.start()))
        here = Place(text, *match.span())
        name = match["round"] or match["curly"]
        if match[0] == "$$":
            yield Lit("$", here, False)
        elif name in values and depth < _MAX_DEPTH:
            value = tuple(_recipe_pieces(text, *values[name], values, depth + 1))
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


#: A cell as its lines, each at its place in the notebook.
Cell = Sequence[Lit]

_SET = re.compile(r"[ \t]*%(?:set_)?env[ \t]+([A-Za-z_]\w{0,99})(?:[ \t]*=[ \t]*|[ \t]+)(\S[^\n]{0,2000}?)[ \t]*\n?")
_FILLED_IN = re.compile(r"[{$]")
_WRITE = re.compile(r"%%(?:writefile|file)[ \t]+(-a[ \t]+|--append[ \t]+)?[\"']?([\w./-]{1,200})[\"']?[ \t]*\n?")
#: Python that changes the environment, or fills it from a file.
_CHANGED = re.compile(
    r"\bos\.environ(?:\[[^\]\n]{0,200}\][ \t]*[+|]?=(?!=)|\.(?:update|pop|setdefault|clear|__setitem__)\b)"
    r"|\bdel[ \t]+os\.environ\b|\bos\.(?:putenv|unsetenv)\b|\bload_dotenv\b"
)
_NAMED = re.compile(r"[\"']([A-Za-z_]\w{0,99})[\"'][ \t]*[\]:,)]")
_KEYWORD = re.compile(r"[(,][ \t]*([A-Za-z_]\w{0,99})[ \t]*=(?!=)")
_MAX_FILES = 50


@dataclass
class Magics:
    """The variables and files of the cells read so far."""

    variables: dict[str, Slot] = field(default_factory=dict)
    written: dict[str, WrittenFile] = field(default_factory=dict)
    _claims: dict[str, list[Claim]] = field(default_factory=dict)
    _changed: set[str] = field(default_factory=set)

    def read(self, cell: Cell, file: SourceFile, tree: Tree) -> None:
        """Read one cell."""
        write = _WRITE.fullmatch(cell[0].text) if cell else None
        if write is not None:
            self._write(cell[1:], write[2], file, tree, appends=write[1] is not None)
            return
        for line in cell:
            match = _SET.fullmatch(line.text)
            if match is not None:
                self._set(line, match[1], match[2], match.start(1), match.end(2))
            elif _CHANGED.search(line.text) is not None:
                self._change(line)

    @property
    def claims(self) -> Iterator[Claim]:
        """Yield the variables that only one line, and no Python, sets; others depend on the order in which cells are
        run.
        """
        for name, found in self._claims.items():
            if len(found) == 1 and name not in self._changed:
                yield found[0]

    def _set(self, line: Lit, name: str, text: str, start: int, end: int) -> None:
        place = line.cut(start, end).place
        unknown = _FILLED_IN.search(text) is not None or is_secret(name)
        value: Value = Unresolved(f"what `{name}` is set to when the cell runs") if unknown else Known(text)
        spelling = f"{name}={HIDDEN if is_secret(name) else text}"
        claim = Claim(ENVIRONMENT_PREFIX + name, value, place.span, spelling, "notebook", strength=Strength.ENVIRONMENT)
        self._claims.setdefault(name, []).append(claim)
        hole = Hole(f"{name} is filled in before the command runs", place, name)
        text_of = (hole,) if unknown else (Lit(text, place, False),)
        self.variables[name] = Slot(Kind.TEXT, place, text_of, exported=True)

    def _change(self, line: Lit) -> None:
        """Forget the values of the variables that a line of Python changes; of all variables if it names none."""
        named = {*_NAMED.findall(line.text), *_KEYWORD.findall(line.text)}
        if not named or "load_dotenv" in line.text:
            named = set(self.variables)
        self._changed |= named
        for name in named.intersection(self.variables):
            hole = Hole(f"{name} is changed by Python before the command runs", line.place, name)
            self.variables[name] = Slot(Kind.TEXT, line.place, (hole,), exported=True)

    def _write(self, lines: Cell, name: str, file: SourceFile, tree: Tree, *, appends: bool) -> None:
        path = tree.resolve(name, relative_to=file.path)
        if path is None or not lines or len(self.written) >= _MAX_FILES:
            return
        if appends or path in self.written:
            # Its lines are in several places, or only the last cell that is run counts.
            self.written.pop(path, None)
            return
        numbers = [line.place.span.line for line in lines]
        if numbers == list(range(numbers[0], numbers[0] + len(lines))):
            self.written[path] = WrittenFile(path, "".join(line.text for line in lines), lines[0].place.span)
