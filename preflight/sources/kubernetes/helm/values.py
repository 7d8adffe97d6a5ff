"""The values of a chart: its values.yaml, and those that the command line beside it sets.

A README or a script in the chart's folder usually holds the command that installs it. Its `-f`, `--set` and
`--set-file` determine the values of the templates (Helm 3 and 4, `helm install --help`; the last one wins).
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from preflight.sources.base import SourceFile, Tree
from preflight.sources.formats.composed import Origin, Piece
from preflight.sources.kubernetes.helm.data import Data, Gap, Series, Table, Written, data_of, merge_tables
from preflight.sources.shell.shell_document import FileText

_COMMAND = re.compile(
    r"^[ \t>$]*(?:[\w./-]*/)?helm[ \t]+(?:\\\r?\n[ \t]*)?(?:install|upgrade|template)\b(?:[^\n\\]|\\.|\\\r?\n)*",
    re.MULTILINE,
)
_STEP = re.compile(r"([^.\[\]\\]+)|\[(\d{1,4})\]")
_UNKNOWN = re.compile(r"\$\{?\w|\$\(|`|<[\w -]+>")
_MAX_COMMANDS = 20
_MAX_FILES = 12
#: Options of `helm install`, `upgrade` and `template` with a value that do not affect the rendered text.
_WITH_VALUE = frozenset(
    (
        *("--timeout", "--kube-context", "--kubeconfig", "--version", "--repo", "--description", "--history-max"),
        *("--username", "--password", "--ca-file", "--cert-file", "--key-file", "--keyring", "--post-renderer"),
        *("-o", "--output", "--labels", "-l", "--api-versions", "-a", "--kube-version", "-s", "--show-only"),
        *("--name-template", "--output-dir", "--registry-config", "--repository-config", "--set-json"),
    )
)


@dataclass(slots=True)
class Command:
    """One `helm install`, `upgrade` or `template`: `settings` are its options in order, with their place."""

    place: Origin
    name: str = ""
    chart: str = ""
    namespace: str = ""
    settings: list[tuple[str, str]] = field(default_factory=list)


def commands_in(file: SourceFile) -> Iterator[Command]:
    """The Helm commands that a README or a script holds."""
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
    """Whether a command in a file of `folder` installs the chart in the folder `chart`."""
    named = command.chart.rstrip("/")
    if _UNKNOWN.match(named):
        rest = named.partition("/")[2]
        return not rest if folder == chart else bool(rest) and (chart == rest or chart.endswith("/" + rest))
    joined = posixpath.normpath(posixpath.join(folder or ".", named or "."))
    return joined == (chart or ".")


def with_settings(values: Table, command: Command, folder: str, tree: Tree) -> Table:
    """The values changed by the options of a command in a file of `folder`."""
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
    """`a.b=1,c={x,y}`, split at unescaped commas outside of braces."""
    parts = re.findall(r"((?:[^,{}\\]|\\.|\{[^{}]*\}|\$\{[^{}]*\})+)", text)
    return [_pair(part) for part in parts if "=" in part]


def _pair(text: str) -> tuple[str, str]:
    key, _, value = text.partition("=")
    return key, re.sub(r"\\(.)", r"\1", value)


def convert_setting(text: str) -> Data:
    """A value of `--set`, converted as Helm converts it."""
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
    """The values with `data` at a path such as `a.b[0].c`."""
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
    """The values in a file; none if it is not a mapping."""
    from preflight.sources.formats import lenient_yaml

    root = lenient_yaml.parse(file.text).root
    data = data_of(root, FileText(file.path, file.text)) if root is not None else None
    return data if isinstance(data, Table) else Table()


def _read_text(path: str, folder: str, tree: Tree) -> Data:
    """The text of a file, each character with its place."""
    file = _resolve_path(path, folder, tree)
    if file is None:
        return Gap(f"{path} is not in the tree")
    text = FileText(file.path, file.text)
    return Written.of((Piece(file.text, Origin(text, 0, len(file.text))),))


def _resolve_path(path: str, folder: str, tree: Tree) -> SourceFile | None:
    """A file that a command names; a variable at its start is assumed to be the folder of the command, or the root."""
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
