"""The chart that a template belongs to, its values, and what Helm would render from them.

A template is below `templates/` of a folder with a Chart.yaml. Its values are those of the chart, of the charts that
contain it, and of the command beside it that installs it.

A README or a script in the chart's folder usually holds the command that installs it. Its `-f`, `--set` and
`--set-file` determine the values of the templates (Helm 3 and 4, `helm install --help`; the last one wins).
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from preflight._util import toml
from preflight._util.budget import truncate
from preflight.model.job import Note, NoteKind
from preflight.sources.base import SourceFile, Tree
from preflight.sources.formats.structured import Origin, Piece
from preflight.sources.kubernetes.helm.functions import (
    FUNCTIONS,
    Data,
    Gap,
    Series,
    Table,
    Written,
    data_of,
    merge_tables,
    to_yaml,
)
from preflight.sources.kubernetes.helm.templates import Defined, Part, Rendering, Source, TemplateFault, parse
from preflight.sources.shell.shell_document import FileText

#: Files of one chart that are read, and folders within its templates.
_MAX_FILES = 200
_MAX_DEPTH = 5
_MAX_CHART_DEPTH = 3
#: Files beside a chart that may hold the command that installs it.
_INSTALLING = re.compile(r"(?i)readme[^/]*\.(?:md|rst|txt)|readme|[^/]*\.(?:sh|md)|makefile|justfile")
#: The name that `helm template` gives to a release without one.
RELEASE = "release-name"


def chart_folder(path: str, tree: Tree) -> str | None:
    """Return the folder of the chart that the template at `path` belongs to; None if it belongs to none."""
    folder = posixpath.dirname(path)
    while folder:
        above, name = posixpath.split(folder)
        if name == "templates" and isinstance(tree.read(posixpath.join(above, "Chart.yaml")), SourceFile):
            return above
        folder = above
    return None


@dataclass(frozen=True, slots=True)
class Rendered:
    """One rendered template."""

    path: str
    pieces: tuple[Piece, ...]


@dataclass(slots=True)
class Chart:
    """One chart of a tree, ready to be rendered.

    Args:
        values: replace those of the chart's folder and of the command beside it.
        blanks: whether a missing value renders as nothing, as in Helm.
    """

    folder: str
    tree: Tree
    blanks: bool = False
    values: Table | None = None
    notes: list[Note] = field(default_factory=list)
    #: Every file of the chart that was examined.
    files: dict[str, SourceFile] = field(default_factory=dict)
    command: Command | None = None
    _parsed: dict[str, tuple[Source, tuple[Part, ...]]] = field(default_factory=dict)
    _defined: dict[str, Defined] = field(default_factory=dict)
    _top: Table = field(default_factory=Table)

    def __post_init__(self) -> None:
        found = list(self._templates(posixpath.join(self.folder, "templates")))
        for path in truncate(found, _MAX_FILES, "templates of a chart"):
            self._parse(path)
        for name in self.tree.names(posixpath.join(self.folder, "charts")):
            inner = posixpath.join(self.folder, "charts", name.rstrip("/"), "templates")
            for path in truncate(list(self._templates(inner)), _MAX_FILES, "templates of a chart"):
                if path.endswith(".tpl"):
                    self._parse(path)
        values = self.values if self.values is not None else self._values(self.folder)
        about = self._read("Chart.yaml")
        chart = values_of(about) if about is not None else Table()
        for key in list(chart):
            if key:
                chart[key[0].upper() + key[1:]] = chart[key]
        release = Table(
            {
                "Name": RELEASE,
                "Namespace": (self.command.namespace if self.command else "") or "default",
                "Service": "Helm",
                "Revision": 1,
                "IsInstall": True,
                "IsUpgrade": False,
            }
        )
        version = Gap("the version of the cluster")
        self._top = Table(
            {
                "Values": values,
                "Chart": chart,
                "Release": release,
                "Capabilities": Table({"KubeVersion": version, "APIVersions": Gap("the API versions of the cluster")}),
                "Files": Table(),
                "Subcharts": Table(),
            }
        )

    @property
    def templates(self) -> tuple[str, ...]:
        """Return the templates that become manifests, in order."""
        return tuple(path for path in self._parsed if path.endswith((".yaml", ".yml", ".json")) and self._is_own(path))

    def render(self, path: str) -> Rendered | None:
        """Render a template; None if it cannot be parsed or evaluated, with a note about the reason."""
        found = self._parsed.get(path)
        if found is None:
            return None
        source, parts = found
        rendering = Rendering(self._defined, self._methods(), self.blanks)
        base = posixpath.join(posixpath.basename(self.folder), "templates")
        name = posixpath.join(base, path[len(posixpath.join(self.folder, "templates")) + 1 :])
        top = Table({**self._top, "Template": Table({"Name": name, "BasePath": base})})
        try:
            pieces = rendering.render(source, parts, top)
        except (ValueError, RecursionError) as error:
            span = source.place(0, 0).span
            self.notes.append(Note(NoteKind.TOO_LARGE, f"{path} is not rendered: {error}", span, required=True))
            return None
        finally:
            self.notes.extend(rendering.notes)
        return Rendered(path, tuple(pieces))

    def _is_own(self, path: str) -> bool:
        return path.startswith(posixpath.join(self.folder, "templates") + "/")

    def _read(self, name: str) -> SourceFile | None:
        path = posixpath.join(self.folder, name)
        found = self.tree.read(path)
        if not isinstance(found, SourceFile):
            return None
        self.files[path] = found
        return found

    def _templates(self, folder: str, depth: int = 0) -> Iterator[str]:
        for name in self.tree.names(folder):
            path = posixpath.join(folder, name)
            if name.endswith("/"):
                if depth < _MAX_DEPTH:
                    yield from self._templates(path.rstrip("/"), depth + 1)
            elif name.endswith((".yaml", ".yml", ".tpl", ".json")):
                yield path

    def _parse(self, path: str) -> None:
        found = self.tree.read(path)
        if not isinstance(found, SourceFile):
            return
        self.files[path] = found
        text = FileText(path, found.text)
        source = Source.of_file(text)
        try:
            template = parse(found.text)
        except TemplateFault as fault:
            span = text.span(fault.start, fault.start)
            message = f"{path} line {span.line}: not a valid template: {fault}"
            self.notes.append(Note(NoteKind.MALFORMED, message, span))
            return
        self._parsed[path] = (source, template.parts)
        self._defined.update({name: Defined(source, parts) for name, parts in template.defined.items()})

    # -- values ------------------------------------------------------------------------------------------------------

    def _values(self, folder: str, depth: int = 0) -> Table:
        path = posixpath.join(folder, "values.yaml")
        found = self.tree.read(path)
        values = Table()
        if isinstance(found, SourceFile):
            self.files[path] = found
            values = values_of(found)
        above, name = posixpath.split(folder)
        holder, kind = posixpath.split(above)
        is_part = kind == "charts" and isinstance(self.tree.read(posixpath.join(holder, "Chart.yaml")), SourceFile)
        if is_part and depth < _MAX_CHART_DEPTH:
            outer = self._values(holder, depth + 1)
            own, shared = outer.get(name), outer.get("global")
            values = merge_tables(own, values) if isinstance(own, Table) else values
            if isinstance(shared, Table):
                before = values.get("global")
                values["global"] = merge_tables(shared, before) if isinstance(before, Table) else shared
            return values
        command = self._installing(folder)
        if command is not None:
            self.command = command
            values = with_settings(values, command, folder, self.tree)
        return values

    def _installing(self, folder: str) -> Command | None:
        """Return the first command in the chart's folder that installs it."""
        for name in self.tree.names(folder):
            if _INSTALLING.fullmatch(name) is None:
                continue
            path = posixpath.join(folder, name)
            file = self.tree.read(path)
            if not isinstance(file, SourceFile) or "helm" not in file.text:
                continue
            command = next((found for found in commands_in(file) if is_of(found, folder, folder)), None)
            if command is not None:
                self.files[path] = file
                return command
        return None

    # -- what templates may call on `.Files` and `.Capabilities` -----------------------------------------------------

    def _methods(self) -> dict[tuple[str, ...], Callable[..., Data]]:
        return {
            ("Files", "Get"): self._get,
            ("Files", "Glob"): self._glob,
            ("Files", "Lines"): lambda path: Gap("lines of a file"),
            ("AsConfig",): _as_config,
            ("AsSecrets",): lambda files: Gap("a secret"),
            ("Capabilities", "APIVersions", "Has"): lambda name: Gap(f"whether the cluster has {name}"),
        }

    def _get(self, path: str) -> Data:
        plain = posixpath.normpath(str(path))
        if plain.startswith(("..", "/")):
            return ""
        file = self._read(plain)
        if file is None:
            return ""
        return Written.of((Piece(file.text, Origin(FileText(file.path, file.text), 0, len(file.text))),))

    def _glob(self, pattern: str) -> Table:
        found = Table()
        folder = posixpath.dirname(str(pattern)).partition("*")[0].rstrip("/")
        waiting = [folder]
        while waiting and len(found) < _MAX_FILES:
            here = waiting.pop()
            for name in self.tree.names(posixpath.join(self.folder, here) if here else self.folder):
                path = posixpath.join(here, name)
                if name.endswith("/"):
                    if "**" in pattern and path.count("/") <= _MAX_DEPTH:
                        waiting.append(path.rstrip("/"))
                elif fnmatch.fnmatchcase(path, str(pattern).replace("**", "*")):
                    found[path] = self._get(path)
        return found


def _as_config(files: Data) -> Data:
    """Return `.Files.Glob(...).AsConfig`: the files as entries of a ConfigMap."""
    if not isinstance(files, Table):
        return Gap("files as a ConfigMap")
    if not files:
        return "{}"
    pieces: list[Piece] = []
    for path in sorted(files):
        text = files[path]
        if not isinstance(text, Written) or not text.strip("\n"):
            continue
        at = text.pieces[0].cut(0, 0).origin
        sign = "|" if text.endswith("\n") else "|-"
        pieces.append(Piece(f"{to_yaml(posixpath.basename(path))}: {sign}\n", at))
        body = FUNCTIONS["indent"](2, text.cut(0, len(text.rstrip("\n"))))
        pieces.extend((*body.pieces, Piece("\n", body.pieces[-1].origin)))
    made = Written.of(pieces)
    return made.cut(0, len(made.rstrip("\n")))


_COMMAND = re.compile(
    r"^[ \t>$]*(?:[\w./-]*/)?helm[ \t]+(?:\\\r?\n[ \t]*)?(?:install|upgrade|template)\b(?:[^\n\\]|\\.|\\\r?\n)*",
    re.MULTILINE,
)
_STEP = re.compile(r"([^.\[\]\\]+)|\[(\d{1,4})\]")
_UNKNOWN = re.compile(r"\$\{?\w|\$\(|`|<[\w -]+>")
_MAX_COMMANDS = 20
#: Options of `helm install`, `upgrade` and `template` with a value that do not affect the rendered text.
_WITH_VALUE = toml.words(__file__, "helm_options.toml", "with-value")


@dataclass(slots=True)
class Command:
    """One `helm install`, `upgrade` or `template`: `settings` are its options in order, with their place."""

    place: Origin
    name: str = ""
    chart: str = ""
    namespace: str = ""
    settings: list[tuple[str, str]] = field(default_factory=list)


def commands_in(file: SourceFile) -> Iterator[Command]:
    """Yield the Helm commands in a README or a script."""
    text = FileText(file.path, file.text)
    for number, match in enumerate(_COMMAND.finditer(file.text)):
        if number >= _MAX_COMMANDS:
            return
        try:
            words = shlex.split(re.sub(r"\\\r?\n", " ", match[0]).strip("> $\t"), comments=True)
        except ValueError:
            continue
        yield _command(words[2:], Origin(text, match.start(), match.end(), exact=False))


def _command(words: Sequence[str], place: Origin) -> Command:
    found = Command(place)
    plain: list[str] = []
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        if word in ("|", ";", "&&", "||", ">"):
            break
        option, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if option in ("-f", "--values", "--set", "--set-string", "--set-file", "--set-literal", "-n", "--namespace"):
            value = value if equals else waiting.pop(0) if waiting else ""
            if option in ("-n", "--namespace"):
                found.namespace = value
            else:
                found.settings.append((option, value))
        elif option in _WITH_VALUE:
            if not equals and waiting:
                waiting.pop(0)
        elif not word.startswith("-"):
            plain.append(word)
    if len(plain) > 1:
        found.name, found.chart = plain[0], plain[1]
    elif plain:
        found.chart = plain[0]
    return found


def is_of(command: Command, folder: str, chart: str) -> bool:
    """Return whether a command in a file of `folder` installs the chart in the folder `chart`."""
    named = command.chart.rstrip("/")
    if _UNKNOWN.match(named):
        rest = named.partition("/")[2]
        return not rest if folder == chart else bool(rest) and (chart == rest or chart.endswith("/" + rest))
    joined = posixpath.normpath(posixpath.join(folder or ".", named or "."))
    return joined == (chart or ".")


def with_settings(values: Table, command: Command, folder: str, tree: Tree) -> Table:
    """Return the values changed by the options of a command in a file of `folder`."""
    for option, text in command.settings:
        if option in ("-f", "--values"):
            for path in text.split(","):
                values = merge_tables(_values_file(path, folder, tree), values)
            continue
        for key, value in _assignments(text) if option != "--set-literal" else [_pair(text)]:
            if option == "--set-file":
                data: Data = _read_text(value, folder, tree)
            elif _UNKNOWN.search(value):
                data = Gap(f"{value} is set on the command line")
            else:
                data = value if option in ("--set-string", "--set-literal") else convert_setting(value)
            values = assign_value(values, key, data, command.place)
    return values


def _assignments(text: str) -> list[tuple[str, str]]:
    """Return `a.b=1,c={x,y}`, split at unescaped commas outside of braces."""
    parts = re.findall(r"((?:[^,{}\\]|\\.|\{[^{}]*\}|\$\{[^{}]*\})+)", text)
    return [_pair(part) for part in parts if "=" in part]


def _pair(text: str) -> tuple[str, str]:
    key, _, value = text.partition("=")
    return key, re.sub(r"\\(.)", r"\1", value)


def convert_setting(text: str) -> Data:
    """Return a value of `--set`, converted as Helm converts it."""
    if text.startswith("{") and text.endswith("}"):
        return Series(convert_setting(item.strip()) for item in text[1:-1].split(",") if item.strip())
    if text in ("true", "false"):
        return text == "true"
    if text == "null":
        return None
    if re.fullmatch(r"-?(?:0|[1-9][0-9]{0,17})", text):
        return int(text)
    return text


def assign_value(values: Table, key: str, data: Data, place: Origin) -> Table:
    """Return the values with `data` at a path such as `a.b[0].c`."""
    steps = [name.replace("\\.", ".") or int(number or 0) for name, number in _STEP.findall(key)]
    return _assign_at(values, steps[:40], data, place) if steps and isinstance(steps[0], str) else values


def _assign_at(target: Data, steps: Sequence[str | int], data: Data, place: Origin) -> Data:
    if not steps:
        return data
    step, rest = steps[0], steps[1:]
    if isinstance(step, str):
        table = Table(target, target.places) if isinstance(target, Table) else Table()
        table[step] = _assign_at(table.get(step), rest, data, place)
        table.places[step] = place
        return table
    if step > 1000:
        return target
    series = Series(target, target.places) if isinstance(target, Series) else Series()
    series.extend([None] * (step + 1 - len(series)))
    series.places.extend([None] * (step + 1 - len(series.places)))
    series[step] = _assign_at(series[step], rest, data, place)
    series.places[step] = place
    return series


def _values_file(path: str, folder: str, tree: Tree) -> Table:
    file = _resolve_path(path, folder, tree)
    return values_of(file) if file is not None else Table()


def values_of(file: SourceFile) -> Table:
    """Return the values in a file; none if it is not a mapping."""
    from preflight.sources.formats import lenient_yaml

    root = lenient_yaml.parse(file.text).root
    data = data_of(root, FileText(file.path, file.text)) if root is not None else None
    return data if isinstance(data, Table) else Table()


def _read_text(path: str, folder: str, tree: Tree) -> Data:
    """Return the text of a file, each character with its place."""
    file = _resolve_path(path, folder, tree)
    if file is None:
        return Gap(f"{path} is not in the tree")
    text = FileText(file.path, file.text)
    return Written.of((Piece(file.text, Origin(text, 0, len(file.text))),))


def _resolve_path(path: str, folder: str, tree: Tree) -> SourceFile | None:
    """Return a file that a command names; a variable at its start is assumed to be the folder of the command, or the
    root.
    """
    plain = path.partition("/")[2] if _UNKNOWN.match(path) else path
    if not plain or plain.startswith("/") or _UNKNOWN.search(plain):
        return None
    for base in (folder, ""):
        joined = posixpath.normpath(posixpath.join(base or ".", plain))
        if joined.startswith(("..", "/")):
            continue
        found = tree.read(joined)
        if isinstance(found, SourceFile):
            return found
    return None
