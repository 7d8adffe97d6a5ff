"""What a notebook's magic commands set up for its launches: variables of `%env`, files of `%%writefile`.

Source: IPython 8.37, core/magics/osm.py (env, set_env, writefile): `%env NAME=value`, `%env NAME value`,
`%set_env NAME value`, `%%writefile [-a] NAME`. Text in braces or after a dollar sign is filled in from Python.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from preflight._util.redaction import HIDDEN
from preflight._util.secret_names import is_secret
from preflight.model.job import Claim, Known, Strength, Unresolved, Value
from preflight.model.job.quantities import ENVIRONMENT_PREFIX
from preflight.sources.base import SourceFile, Tree, WrittenFile
from preflight.sources.shell.shell_document import Hole, Lit
from preflight.sources.shell.state import Kind, Slot

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
        """The variables that only one line sets, and no Python; others depend on the order in which cells are run."""
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
        """Forget the values of the variables that a line of Python changes; of all, if it names none."""
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
