"""The chart that a template belongs to, and what Helm would render from it.

A template is below `templates/` of a folder with a Chart.yaml. Its values are those of the chart, of the charts that
contain it, and of the command beside it that installs it.
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from preflight._util.budget import truncate
from preflight.model.job import Note, NoteKind
from preflight.sources.base import SourceFile, Tree
from preflight.sources.formats.composed import Origin, Piece
from preflight.sources.kubernetes.helm.data import Data, Gap, Table, Written, merge_tables
from preflight.sources.kubernetes.helm.functions import FUNCTIONS, to_yaml
from preflight.sources.kubernetes.helm.go_template import Part, TemplateFault, parse
from preflight.sources.kubernetes.helm.rendering import Defined, Rendering, Source
from preflight.sources.kubernetes.helm.values import Command, commands_in, is_of, values_of, with_settings
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
    """The folder of the chart that the template at `path` belongs to; None if it belongs to none."""
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
        """The templates that become manifests, in order."""
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
        """The first command in the chart's folder that installs it."""
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
    """`.Files.Glob(...).AsConfig`: the files as entries of a ConfigMap."""
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
