"""The launches of a script with the written words of each, and what has to change for one of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field

from preflight.job import Claim, Known, Launch
from preflight.lazy.dataclasses import dataclass
from preflight.lazy.patterns import lazy_pattern
from preflight.relaunch.edits import Edit, Refusal
from preflight.sources.base import Command, Script, SourceFile, Tree
from preflight.sources.launchers import slurm
from preflight.sources.launchers.batch_headers import batch_header
from preflight.sources.launchers.program import ProgramReader
from preflight.sources.launchers.reading import Line, launch_lines
from preflight.sources.shell.document import Document, Lit, Place, Text
from preflight.sources.shell.evaluate import evaluate
from preflight.sources.shell.trace import Trace, Written

#: Flags by which launchers take the name of a module where else a script stands.
_MODULE_FLAGS = ("-m", "--module", "--module_mode", "--module-mode")
#: Between two pieces of text that belong together there may be a quotation mark or a backslash.
_WIDEST_SEAM = 3
_BETWEEN_WORDS = lazy_pattern(r"(?:[ \t]|\\\r?\n)*")
#: Launchers that are the training program themselves, or hand it to a service of their own.
_NO_PROGRAM = ("ray", "torchx", "llamafactory-cli", "axolotl", "trl", "tune", "swift")


@dataclass(frozen=True)
class Traced:
    """A script as evaluated, with its trace and its launches."""

    script: Script
    trace: Trace
    launches: tuple[TracedLaunch, ...]


@dataclass(frozen=True)
class TracedLaunch:
    """One launch: the command it is, the line that was found in it, and how it is written.

    `program` is the index of the program's word in the command; None, with a reason in `why`, where there is none to
    replace. `ranks` says whether a Python interpreter starts it, so that it may be a rank.
    """

    launch: Launch
    command: Command
    line: Line
    written: Written | None
    program: int | None
    why: str = ""
    ranks: bool = True


def traced(file: SourceFile, tree: Tree) -> Traced:
    """The script evaluated, and its launches in order. Nothing is executed."""
    trace = Trace()
    script = evaluate(file, tree, trace=trace)
    header = slurm.from_directives(script.directives)
    other = batch_header(file) if not script.directives else None
    if other is not None:
        header = other.asked
    batch = bool(header) or bool(script.directives) or other is not None
    found = []
    for command, line in launch_lines(script.commands, header if batch else None):
        reading = line.found.reader.read(line.line, tree) if line is not None else None
        if line is None or reading is None or not reading.launches:
            continue
        launch = reading.launches[0]
        program, why = _program(command, line, launch, reading.claims)
        # `ray start` trains nothing, and of what mpirun starts beside Python nobody knows what it is.
        serves = launch.launcher == "ray" and not any(claim.quantity == "script" for claim in reading.claims)
        ranks = not serves and not isinstance(line.found.reader, ProgramReader)
        written = trace.written.get(id(command))
        found.append(TracedLaunch(launch, command, line, written, program, why, ranks))
    return Traced(script, trace, tuple(found))


def _program(command: Command, line: Line, launch: Launch, claims: Sequence[Claim]) -> tuple[int | None, str]:
    """Where among the words of a command its program stands: everything behind it are the program's arguments."""
    name = launch.launcher
    if name in _NO_PROGRAM:
        return None, f"{name} is launcher and training program in one, so there is no program in it to replace"
    index = len(command.words) - 1 - len(launch.arguments)
    said = [claim for claim in claims if claim.quantity == "script"]
    if index < 1 - int(isinstance(line.found.reader, ProgramReader)) or not said:
        return None, f"no training program was found behind {name}"
    if not any(claim.span == command.words[index].span for claim in said):
        return None, f"the training program of {name} does not stand where the line ends"
    return index, ""


@dataclass(frozen=True)
class Change:
    """What has to change for one launch, `removed` being the words that are replaced, as they came out."""

    edits: tuple[Edit, ...]
    removed: tuple[str, ...]
    kept: tuple[str, ...] = field(default=())


def change(found: TracedLaunch, entry: str, *, whole: bool) -> Change:
    """The edits that put `entry` in the place of the program, and with `whole` of its arguments.

    Without `whole`, arguments that do not come from the very word of the program stay: the trainer ignores them.

    Raises:
        Refusal: the words cannot be told apart from others in the text.
    """
    written, index = found.written, found.program
    if written is None or index is None:
        raise Refusal(found.why or "how this command is written cannot be followed", found.launch.span)
    words = found.command.words
    at = written.holding(index)
    behind = written.starts[at + 1] if at + 1 < len(written.starts) else len(words)
    groups: list[Place] = []
    kept = () if whole else words[behind:]
    if written.starts[at] == index:
        for start, end in _joined(written.document, written.ranges[at:] if whole else written.ranges[at : at + 1]):
            groups += stretches(written.document.slice(start, end))
    else:
        last = behind if whole else index + 1
        kept = kept if whole else words[last:]
        groups += stretches(tuple(piece for each in written.fields[index:last] for piece in each.text))
        for start, end in _joined(written.document, written.ranges[at + 1 :] if whole else ()):
            groups += stretches(written.document.slice(start, end))
    if not groups:
        raise Refusal("the program's name is empty there", found.launch.span)
    edits = [Edit(groups[0].file.path, groups[0].start, groups[0].end, entry)]
    edits += [Edit(group.file.path, group.start, group.end, "") for group in groups[1:]]
    edits += _without_flags(found, written)
    shown = [word.spelling for word in words[index:]]
    return Change(tuple(dict.fromkeys(edits)), tuple(shown), tuple(word.spelling for word in kept))


def _joined(document: Document, ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Neighbouring written words as one stretch; a redirection between them stays."""
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


def stretches(pieces: Text) -> list[Place]:
    """Where in files these pieces stand, neighbours as one stretch."""
    found: list[Place] = []
    for piece in pieces:
        place = piece.place
        if isinstance(piece, Lit) and not piece.text:
            continue
        before = found[-1] if found else None
        if before is not None and before.file is place.file and before.start <= place.start:
            seam = place.file.text[before.end : place.start]
            if place.start <= before.end or len(seam) <= _WIDEST_SEAM or _BETWEEN_WORDS.fullmatch(seam):
                found[-1] = Place(place.file, before.start, max(before.end, place.end))
                continue
        found.append(place)
    return found


def module_flags(found: TracedLaunch) -> tuple[int, ...]:
    """Where `-m` stands in front of a module's name: it goes, as a file takes the module's place."""
    words = found.command.words
    first = len(words) - len(found.line.found.words)
    behind = range(max(first + 1, 1), found.program or 0)
    return tuple(at for at in behind if words[at].value in [Known(flag) for flag in _MODULE_FLAGS])


def _without_flags(found: TracedLaunch, written: Written) -> Iterator[Edit]:
    for at in module_flags(found):
        places = stretches(written.fields[at].text)
        if len(places) != 1:
            word = found.command.words[at]
            raise Refusal(f"{word.spelling} cannot be taken away there", word.span)
        place = places[0]
        blank = _BETWEEN_WORDS.match(place.file.text, place.end)
        yield Edit(place.file.path, place.start, blank.end() if blank is not None else place.end, "")
