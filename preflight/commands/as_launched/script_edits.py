"""The launches of a script, the words in which each is written, and the text edits that replace their programs."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from preflight._util.sequences import grouped
from preflight._util.spans import span_of
from preflight.model.job import Claim, Known, Launch, Span
from preflight.sources.base import Command, Script, SourceFile, Tree
from preflight.sources.launchers import slurm
from preflight.sources.launchers.batch_jobs import batch_header
from preflight.sources.launchers.launch_lines import Line, launch_lines, plain_line
from preflight.sources.launchers.mpi import read_compiled
from preflight.sources.launchers.option_parser import is_python, python_program
from preflight.sources.launchers.python import spawns_ranks
from preflight.sources.launchers.wrappers import strip_wrappers
from preflight.sources.shell.abstract_machine import Trace, Written
from preflight.sources.shell.evaluator import evaluate
from preflight.sources.shell.shell_document import Document, Lit, Place, Text

if TYPE_CHECKING:
    from tree_sitter import Node


@dataclass(frozen=True, slots=True, order=True)
class Edit:
    """Replaces characters `start` to `end` of the file `path` with `text`."""

    path: str
    start: int
    end: int
    text: str


class Refusal(Exception):
    """The reason why a program cannot be replaced without changing something else; `span` is the location, if any."""

    def __init__(self, message: str, span: Span | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.span = span

    def __str__(self) -> str:
        return f"{self.span.path}:{self.span.line}: {self.message}" if self.span is not None else self.message


def apply(texts: Mapping[str, str], edits: Iterable[Edit]) -> dict[str, str]:
    """Return the files that change, with their new text. Raises Refusal for conflicting edits."""
    by_path = grouped((edit.path, edit) for edit in dict.fromkeys(edits))
    changed = {}
    for path, found in sorted(by_path.items()):
        text, next_start = texts[path], len(texts[path]) + 1
        for edit in sorted(found, reverse=True):
            if edit.end > next_start:
                line = text.count("\n", 0, edit.start) + 1
                raise Refusal(f"{path}:{line}: two launches share words that need different replacements")
            text = text[: edit.start] + edit.text + text[edit.end :]
            next_start = edit.start
        changed[path] = text
    return changed


_OWN_PATH = re.compile(r"\$\{?(?:0|BASH_SOURCE)\b")
#: `$0`, `${0}`, `$BASH_SOURCE`, `${BASH_SOURCE[0]}`, optionally with one of two ways to cut a path.
_PLAIN = re.compile(r"\$(?:0|BASH_SOURCE)|\$\{(?:0|BASH_SOURCE|BASH_SOURCE\[0\])(?P<cut>%/\*|##\*/)?\}")
_EXPANSIONS = ("simple_expansion", "expansion")


def edits(path: str, text: str, place: str) -> Iterator[Edit]:
    """Yield edits that insert the original `place` where the script determines its location. Raises Refusal."""
    if not _OWN_PATH.search(text):
        return
    document = Document.of_file(path, text)
    pending: list[Node] = [document.root]
    while pending:
        node = pending.pop()
        if node.type in _EXPANSIONS and _OWN_PATH.match(document.text_of(node).lstrip()):
            start = document.start_of(node)
            found = _PLAIN.fullmatch(document.text, start, node.end_byte)
            if found is None:
                requested = document.text[start : node.end_byte]
                message = f"{requested} depends on the script's location, which its copy would change"
                raise Refusal(f"{message}; pass the script's own folder with --to", span_of(path, text, start, start))
            cut = found["cut"]
            answer = posixpath.dirname(place) if cut == "%/*" else posixpath.basename(place) if cut else place
            yield Edit(path, start, node.end_byte, answer)
            continue
        pending.extend(node.children)


#: Launchers' options that take a module name where a script would otherwise be expected.
_MODULE_FLAGS = ("-m", "--module", "--module_mode", "--module-mode")
#: A quote or a backslash may separate two pieces of text that belong together.
_MAX_SEAM_LENGTH = 3
_BETWEEN_WORDS = re.compile(r"(?:[ \t]|\\\r?\n)*")
#: Launchers that are themselves the training program, or pass the program to their own service.
_NO_PROGRAM = ("ray", "torchx", "llamafactory-cli", "axolotl", "trl", "tune", "swift")


@dataclass(frozen=True)
class TracedScript:
    """An evaluated script with its trace and its launches."""

    script: Script
    trace: Trace
    launches: tuple[TracedLaunch, ...]


@dataclass(frozen=True)
class TracedLaunch:
    """One launch: its command, its launch line, and how it is written.

    `program` is the index of the program's word in the command; None, with a reason in `why`, if there is no program to
    replace. `ranks`: whether a Python interpreter starts it, so that it may be a rank; `spawns`: whether it is started
    once and starts its ranks itself.
    """

    launch: Launch
    command: Command
    line: Line
    written: Written | None
    program: int | None
    why: str = ""
    ranks: bool = True
    spawns: bool = False


def trace_script(file: SourceFile, tree: Tree, entries: Collection[str] = ()) -> TracedScript:
    """Return the launches of a script in order, without executing it; `entries` are trainers in it."""
    trace = Trace()
    script = evaluate(file, tree, trace=trace)
    header = slurm.from_directives(script.directives)
    other = batch_header(file) if not script.directives else None
    if other is not None:
        header = other.options
    batch = bool(header) or bool(script.directives) or other is not None
    traced_launches = []
    ids: dict[str, int] = {}
    for command, line in launch_lines(script.commands, header if batch else None, ids=ids):
        spawns = line is None and (spawns_ranks(command, tree) or _starts_one_of(command, entries))
        if spawns:
            line = plain_line(command, tree, ids, "#spawn")
        reading = line.found.read(line.line, tree) if line is not None else None
        if line is None or reading is None or not reading.launches:
            continue
        launch = reading.launches[0]
        program, reason = _program(command, line, launch, reading.claims)
        # `ray start` trains nothing, and a non-Python program started by mpirun is unknown.
        serves = launch.launcher == "ray" and not any(claim.quantity == "script" for claim in reading.claims)
        ranks = not serves and line.found.read is not read_compiled
        written = trace.written.get(id(command))
        traced_launches.append(TracedLaunch(launch, command, line, written, program, reason, ranks, spawns))
    return TracedScript(script, trace, tuple(traced_launches))


def _starts_one_of(command: Command, entries: Collection[str]) -> bool:
    words = strip_wrappers(command).words
    program = python_program(words) if is_python(words) else None
    return program is not None and bool(program.words) and program.words[0].value in [Known(entry) for entry in entries]


def _program(command: Command, line: Line, launch: Launch, claims: Sequence[Claim]) -> tuple[int | None, str]:
    """Return the index of the program in a command's words; all words after it are the program's arguments."""
    name = launch.launcher
    if name in _NO_PROGRAM:
        return None, f"{name} is launcher and training program in one; there is no program to replace"
    index = len(command.words) - 1 - len(launch.arguments)
    stated = [claim for claim in claims if claim.quantity == "script"]
    if index < 1 - int(line.found.read is read_compiled) or not stated:
        return None, f"no training program found after {name}"
    if not any(claim.span == command.words[index].span for claim in stated):
        return None, f"the training program of {name} is not at the end of the line"
    return index, ""


@dataclass(frozen=True)
class Change:
    """The edits for one launch; `removed` are the replaced words, as evaluated."""

    edits: tuple[Edit, ...]
    removed: tuple[str, ...]
    kept: tuple[str, ...] = field(default=())


def change(traced: TracedLaunch, entry: str, *, whole: bool) -> Change:
    """Return the edits that replace the program, and with `whole` all of its arguments, with `entry`. Raises
    Refusal.
    """
    written, index = traced.written, traced.program
    if written is None or index is None:
        raise Refusal(traced.why or "the text of this command cannot be traced", traced.launch.span)
    words = traced.command.words
    at = written.holding(index)
    behind = written.starts[at + 1] if at + 1 < len(written.starts) else len(words)
    groups: list[Place] = []
    kept_words = () if whole else words[behind:]
    if written.starts[at] == index:
        for start, end in _join_ranges(written.document, written.ranges[at:] if whole else written.ranges[at : at + 1]):
            groups += merge_ranges(written.document.slice(start, end))
    else:
        last = behind if whole else index + 1
        kept_words = kept_words if whole else words[last:]
        groups += merge_ranges(tuple(piece for item in written.fields[index:last] for piece in item.text))
        for start, end in _join_ranges(written.document, written.ranges[at + 1 :] if whole else ()):
            groups += merge_ranges(written.document.slice(start, end))
    if not groups:
        raise Refusal("the program's name is empty there", traced.launch.span)
    edits = [Edit(groups[0].file.path, groups[0].start, groups[0].end, entry)]
    edits += [Edit(group.file.path, group.start, group.end, "") for group in groups[1:]]
    edits += _without_flags(traced, written)
    shown = [word.spelling for word in words[index:]]
    return Change(tuple(dict.fromkeys(edits)), tuple(shown), tuple(word.spelling for word in kept_words))


def _join_ranges(document: Document, ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Join adjacent written words into one range; a redirection between words stays."""
    current: tuple[int, int] | None = None
    for start, end in ranges:
        if current is not None and _BETWEEN_WORDS.fullmatch(document.text, current[1], start):
            current = current[0], end
            continue
        if current is not None:
            yield current
        current = start, end
    if current is not None:
        yield current


def merge_ranges(pieces: Text) -> list[Place]:
    """Return the file ranges of these pieces, adjacent ones joined."""
    places: list[Place] = []
    for piece in pieces:
        place = piece.place
        if isinstance(piece, Lit) and not piece.text:
            continue
        before = places[-1] if places else None
        if before is not None and before.file is place.file and before.start <= place.start:
            seam = place.file.text[before.end : place.start]
            if place.start <= before.end or len(seam) <= _MAX_SEAM_LENGTH or _BETWEEN_WORDS.fullmatch(seam):
                places[-1] = Place(place.file, before.start, max(before.end, place.end))
                continue
        places.append(place)
    return places


def module_flags(traced: TracedLaunch) -> tuple[int, ...]:
    """Return the ranges of `-m` before a module name, which must be removed because a file replaces the module."""
    words = traced.command.words
    first = len(words) - len(traced.line.found.words)
    end = range(max(first + 1, 1), traced.program or 0)
    return tuple(at for at in end if words[at].value in [Known(flag) for flag in _MODULE_FLAGS])


def _without_flags(traced: TracedLaunch, written: Written) -> Iterator[Edit]:
    for at in module_flags(traced):
        places = merge_ranges(written.fields[at].text)
        if len(places) != 1:
            word = traced.command.words[at]
            raise Refusal(f"{word.spelling} cannot be removed there", word.span)
        place = places[0]
        blank = _BETWEEN_WORDS.match(place.file.text, place.end)
        yield Edit(place.file.path, place.start, blank.end() if blank is not None else place.end, "")
