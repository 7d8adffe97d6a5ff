"""Parses the options of a command line as the launcher's own parser does, and finds the files and programs in it.

Unlike a real parser it accepts words with unknown parts: `--rdzv_endpoint=$HEAD:29500` still gives the port, and a word
that may stand for several (`$EXTRA_ARGS`) makes the result incomplete instead of wrong.
"""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from preflight._util import toml
from preflight.model.job import Known, OneOf, Reference, Span, Strength, Unresolved, Value, alternatives, lift
from preflight.model.job.value import Symbol, symbols_in, with_affixes
from preflight.sources.base import NO_VALUE, Command, LaunchLine, SourceFile, Tree, Word
from preflight.sources.tables import load_table

#: Words searched for a program after a word that may be several.
_MAX_WORDS = 200


class Option(NamedTuple):
    """One option.

    Args:
        dest: its name in claims.
        takes: the number of words that follow it.
        pair: whether name and value are two words or, with a `=`, one (`-genv NAME VALUE`, `-genv NAME=VALUE`).
    """

    dest: str
    takes: int = 1
    pair: bool = False


class Table(NamedTuple):
    """All options of one program.

    Args:
        options: every spelling with its option.
        abbreviations: whether a unique prefix of a long option counts (argparse, getopt_long).
        interleaved: whether options may follow the first positional word.
        single_dash: whether long options have one dash (Open MPI's `-np`, `-hostfile`).
    """

    options: Mapping[str, Option]
    abbreviations: bool = True
    interleaved: bool = False
    single_dash: bool = False

    def find(self, spelling: str) -> Option | None:
        """Return the option for `spelling`, exact or abbreviated."""
        exact = self.options.get(spelling)
        if exact is not None or not self.abbreviations or not spelling.startswith("--") or len(spelling) < 4:
            return exact
        found = {self.options[name] for name in self.options if name.startswith(spelling)}
        return found.pop() if len(found) == 1 else None


class GivenOption(NamedTuple):
    """One option on the line, of a batch header, or the variable that stands for one.

    `parts` are the pieces of its value when there are several.
    """

    dest: str
    value: Value
    span: Span
    spelling: str
    parts: tuple[Value, ...] = ()
    strength: Strength = Strength.FLAG
    condition: str = ""


def known_text(given: GivenOption) -> str:
    """Return the known value of an option, or an empty string."""
    return str(given.value.value) if isinstance(given.value, Known) else ""


@dataclass(frozen=True, slots=True)
class ScannedLine:
    """A parsed command line.

    Args:
        given: its options.
        rest: the words from the first positional one on.
        incomplete: whether a word may hide further options, so that a missing option may still be set.
        unknown: the options that are not in the table.
    """

    given: tuple[GivenOption, ...] = ()
    rest: tuple[Word, ...] = ()
    incomplete: bool = False
    unknown: tuple[Word, ...] = field(default=())

    def last(self, *dests: str) -> GivenOption | None:
        """Return the effective option among `dests`: the last one, as in most parsers."""
        return next((given for given in reversed(self.given) if given.dest in dests), None)

    def every(self, dest: str) -> tuple[GivenOption, ...]:
        """Return all occurrences of an option that may be repeated."""
        return tuple(given for given in self.given if given.dest == dest)


def table(
    valued: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
    *,
    abbreviations: bool = True,
    interleaved: bool = False,
    single_dash: bool = False,
) -> Table:
    """Build a table from `dest -> spellings separated by blanks`, for options with a value and for flags."""
    options: dict[str, Option] = {}
    for takes, names in ((1, valued or {}), (0, flags or {})):
        for dest, spellings in names.items():
            for spelling in spellings.split():
                options[spelling] = Option(dest, takes)
    return Table(options, abbreviations=abbreviations, interleaved=interleaved, single_dash=single_dash)


def declared_options(name: str) -> dict[str, Any]:
    """Return a program's options as `options.toml` has them, whose head describes the fields."""
    found: dict[str, Any] = toml.beside(__file__, "options.toml")[name]
    return found


def declared_table(name: str) -> Table:
    """Return the table of a program's options in `options.toml`, and of its generated ones with `--help`.

    An option with a variable number of values is parsed as if it had one.
    """
    row = {key: item for key, item in declared_options(name).items() if key not in ("variables", "overriding")}
    generated, renamed = row.pop("generated", ()), row.pop("renamed", {})
    valued, flags = _by_name(row.pop("others", "")), _by_name(row.pop("other_flags", ""))
    flags |= {"help": "-h --help"} if generated else {}
    options = dict(table({**valued, **row.pop("valued", {})}, {**flags, **row.pop("flags", {})}).options)
    for each in (each for program in generated for each in load_table(program).rows):
        option = Option(renamed.get(each.dest, each.dest), int(each.takes) if each.takes.isdecimal() else 1)
        for spelling in each.spellings:
            options.setdefault(spelling, option)
    return Table(options, **row)


def _by_name(spellings: str) -> dict[str, str]:
    """Map each option's name to its spelling: `nproc_per_node` to `--nproc-per-node`."""
    return {spelling.lstrip("-").replace("-", "_"): spelling for spelling in spellings.split()}


#: Words after which a program comes.
_START_PROGRAMS = ("-m", "--module", "torchrun", "deepspeed", "python", "python3", "bash")
#: No program is called so: a number, or hosts with their slots.
_NO_PROGRAM = re.compile(r"-?\d+(?:\.\d+)?|(?:[\w.-]+:\d+,?)+")


def scan(words: Sequence[Word], known: Table) -> ScannedLine:
    """Split `words`, without the program's name, into options and the rest."""
    given: list[GivenOption] = []
    unknown: list[Word] = []
    kept: list[Word] = []
    incomplete = False
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if word.many and not known_prefix(word).startswith("-"):
            following = words[index : index + _MAX_WORDS]
            if _hides_options(following) or _precedes_option(following, known):
                incomplete = True
                continue
            return ScannedLine(tuple(given), tuple(words[index - 1 :]), incomplete, tuple(unknown))
        text = known_prefix(word)
        if _is_one_of_several_options(word, text):
            # Which one, and whether the next word is its value, depends on a branch.
            incomplete = True
            continue
        if text == "--" and isinstance(word.value, Known):
            return ScannedLine(tuple(given), (*kept, *words[index:]), incomplete, tuple(unknown))
        if not text.startswith("-") or text == "-":
            if known.interleaved:
                kept.append(word)
                continue
            return ScannedLine(tuple(given), tuple(words[index - 1 :]), incomplete, tuple(unknown))
        taken = _parse_option(word, text, words[index : index + 2], known)
        if taken is None:
            unknown.append(word)
            incomplete = incomplete or isinstance(word.value, Unresolved)
            if index < len(words) and "=" not in text and _NO_PROGRAM.fullmatch(known_prefix(words[index])):
                # The value of the unknown option.
                index += 1
            continue
        found, consumed = taken
        given.extend(found)
        index += consumed
    return ScannedLine(tuple(given), tuple(kept), incomplete, tuple(unknown))


def _is_one_of_several_options(word: Word, text: str) -> bool:
    """Return whether a word is another option in each branch (`--head` or `--address=h1`), not another value of one."""
    if not isinstance(word.value, OneOf) or "=" in text or len(text) > 2:
        return False
    names = {str(value).partition("=")[0] for value in word.value.values}
    return len(names) > 1 and any(name.startswith("--") for name in names)


def _parse_option(
    word: Word, text: str, following: Sequence[Word], known: Table
) -> tuple[list[GivenOption], int] | None:
    """Parse the options in `word`, and the number of further words they take; None for an unknown option."""
    name, equals, _ = text.partition("=")
    option = known.find(name)
    if option is not None and equals:
        return [_attached_option(option, word, len(name) + 1)], 0
    if option is not None and isinstance(word.value, Known):
        if option.pair and following and "=" in known_prefix(following[0]):
            option = Option(option.dest)
        return _separate([], option, word, following)
    if text.startswith("--") or (known.single_dash and known.options.get(text[:2]) is None):
        return None
    # Several short options in one word: `-N4`, `-vn2`, `-lv`.
    found: list[GivenOption] = []
    for position in range(1, len(text)):
        option = known.options.get("-" + text[position])
        if option is None:
            return None
        if option.takes and (position + 1 < len(text) or not isinstance(word.value, Known)):
            return [*found, _attached_option(option, word, position + 1)], 0
        if option.takes:
            return _separate(found, option, word, following)
        found.append(GivenOption(option.dest, Known(True), word.span, word.spelling))
    return found, 0


def _attached_option(option: Option, word: Word, start: int) -> GivenOption:
    """Return an option whose value begins at `start` of its own word."""
    return GivenOption(option.dest, value_after(word, start), word.span, word.spelling, _pieces_after(word, start))


def _separate(
    before: list[GivenOption], option: Option, word: Word, following: Sequence[Word]
) -> tuple[list[GivenOption], int]:
    """Return the options before one whose values are the next words, that one, and the number of its values."""
    if not option.takes or not following:
        value: Value = NO_VALUE if option.takes else Known(True)
        return [*before, GivenOption(option.dest, value, word.span, word.spelling)], 0
    first, *more = words = following[: option.takes]
    value = lift(lambda *given: " ".join(map(str, given)), *(each.value for each in words)) if more else first.value
    spelling = " ".join(each.spelling for each in (word, *words))
    parts = () if more else first.parts
    given = GivenOption(option.dest, value, join_spans(word.span, words[-1].span), spelling, parts)
    return [*before, given], option.takes


def known_prefix(word: Word) -> str:
    """Return the known beginning of a word: all of it, or the text before the first unknown piece."""
    if isinstance(word.value, Known):
        return str(word.value.value)
    if isinstance(word.value, OneOf):
        return posixpath.commonprefix([str(value) for value in word.value.values])
    if word.parts:
        first = word.parts[0]
        return str(first.value) if isinstance(first, Known) else ""
    bare = word.spelling.strip("\"'")
    cut = min((at for at in (bare.find("$"), bare.find("`")) if at >= 0), default=len(bare))
    return bare[:cut].replace('"', "").replace("'", "")


def text_of(word: Word) -> str | None:
    """Return the text of a word, or None when it is unknown."""
    return str(word.value.value) if isinstance(word.value, Known) and not word.many else None


def join_spans(first: Span, last: Span) -> Span:
    """Return a span from the start of `first` to the end of `last`; only `first` when `last` does not follow it."""
    if first.path != last.path or (last.end_line, last.end_column) < (first.line, first.column):
        return first
    return Span(first.path, first.line, first.column, last.end_line, last.end_column, first.snippet)


def pieces_of(value: Value, parts: tuple[Value, ...]) -> tuple[Value, ...]:
    """Return the pieces that a value was built from; the value itself when it is in one piece."""
    return parts if parts and isinstance(value, Unresolved) else (value,)


def concatenate(parts: Sequence[Value]) -> Value:
    """Concatenate values."""
    if len(parts) == 1:
        return parts[0]
    holes = [index for index, part in enumerate(parts) if isinstance(part, Unresolved)]
    if len(holes) == 1 and all(isinstance(part, Known | Unresolved) for part in parts):
        around = [
            "".join(str(part.value) for part in side if isinstance(part, Known))
            for side in (parts[: holes[0]], parts[holes[0] + 1 :])
        ]
        hole = parts[holes[0]]
        if isinstance(hole, Unresolved) and not any("`" in text for text in around):
            return with_affixes(hole, *around)
    return lift(lambda *texts_given: "".join(str(piece) for piece in texts_given), *parts)


def split_last(parts: Sequence[Value], sign: str) -> tuple[Value, Value] | None:
    """Split at the last known `sign`; None when no known piece has it."""
    for index in range(len(parts) - 1, -1, -1):
        part = parts[index]
        if not isinstance(part, Known) or sign not in str(part.value):
            continue
        before, _, after = str(part.value).rpartition(sign)
        left = [*parts[:index], *([Known(before)] if before else [])]
        right = [*([Known(after)] if after else []), *parts[index + 1 :]]
        return concatenate(left) if left else Known(""), concatenate(right) if right else Known("")
    return None


def texts(value: Value) -> tuple[str, ...]:
    """Return every string that a value may be."""
    return tuple(str(item) for item in alternatives(value))


def value_after(word: Word, start: int) -> Value:
    """Return the value of a word without its first characters, which are known."""
    if isinstance(word.value, Unresolved):
        return concatenate(_pieces_after(word, start) or (word.value,))
    return lift(lambda item: str(item)[start:], word.value)


def _pieces_after(word: Word, start: int) -> tuple[Value, ...]:
    if not word.parts:
        return ()
    first = word.parts[0]
    if not isinstance(first, Known) or len(str(first.value)) < start:
        return ()
    rest = str(first.value)[start:]
    return (*((Known(rest),) if rest else ()), *word.parts[1:])


def _precedes_option(following: Sequence[Word], known: Table) -> bool:
    """Return whether an option of the same program comes next: if so, the unknown words before it can only be
    options.
    """
    first = next((word for word in following if not word.many), None)
    name = (text_of(first) or "").partition("=")[0] if first is not None else ""
    return name.startswith("--") and known.find(name) is not None


def _hides_options(following: Sequence[Word]) -> bool:
    """Return whether a program still follows: if so, the unknown words before it can only be options."""
    for word in following[:_MAX_WORDS]:
        text = text_of(word)
        if text is None:
            if not known_prefix(word).startswith("-") and word.spelling.strip("\"'{}").endswith(".py"):
                return True
        elif text.endswith((".py", ".pyc")) or text.rpartition("/")[2] in _START_PROGRAMS:
            return True
    return False


def relative(path: str, line: LaunchLine, tree: Tree) -> str | None:
    """Resolve `path` as the command would open it, relative to the root; None when it leads outside."""
    outermost = line.command
    while outermost.outer is not None:
        outermost = outermost.outer
    directory = line.command.directory
    base = posixpath.join(directory, "_") if directory else outermost.span.path
    found = tree.resolve(path, relative_to=base)
    if found is None:
        return None
    folder = posixpath.dirname(base)
    if folder and path.startswith(f"{folder}/") and not isinstance(tree.read(found), SourceFile):
        # `$(dirname "$0")/ds.json` is already relative to the root.
        return posixpath.normpath(path)
    return posixpath.normpath(found)


def file_named(path: str | None, line: LaunchLine, tree: Tree | None) -> SourceFile | None:
    """Return the file that the command would open at `path`; None if there is none below the root."""
    target = relative(path, line, tree) if path and tree is not None else None
    file = tree.read(target) if tree is not None and target is not None else None
    return file if isinstance(file, SourceFile) else None


def named_values(words: Sequence[Word]) -> Iterator[tuple[str, str, Word, Word]]:
    """Yield each word as an option: its name, the known text of its value, itself, and the word that has the value:
    its own after `=`, or the next.
    """
    for word, after in itertools.zip_longest(words, words[1:]):
        name, equals, value = (text_of(word) or "").partition("=")
        if equals or after is None:
            yield name, value, word, word
        else:
            yield name, text_of(after) or "", word, after


def line_of(command: Command, words: Sequence[Word]) -> LaunchLine:
    """Return a command without its wrappers as a launch line whose id is its place."""
    return LaunchLine(f"{command.span.path}:{command.span.line}", tuple(words), command)


def script_at(path: str | None, tree: Tree) -> SourceFile | None:
    """Return the Python script at a path below the root; None for anything else."""
    file = tree.read(path) if path is not None and path.endswith(".py") else None
    return file if isinstance(file, SourceFile) else None


def paths_of(value: Value, parts: tuple[Value, ...] = ()) -> tuple[str, ...]:
    """Return every path that a word may name; `$PWD/train.py` and `$SLURM_SUBMIT_DIR/train.py` count from its working
    directory.
    """
    if not isinstance(value, Unresolved):
        return texts(value)
    if len(parts) < 2 or Symbol.START_DIRECTORY not in symbols_in(parts[0]):
        return ()
    return tuple(text.lstrip("/") for text in texts(concatenate(parts[1:])) if text.startswith("/"))


def end_of_path(parts: Sequence[Value]) -> str:
    """Return the known end of a path in an unknown folder: `/tools/train.py` of `$PROJECT/tools/train.py`."""
    end = list(itertools.takewhile(lambda part: isinstance(part, Known), reversed(parts)))
    known = texts(concatenate(tuple(reversed(end)))) if 0 < len(end) < len(parts) else ()
    return known[0] if len(known) == 1 and known[0].startswith("/") else ""


def file_references(given: GivenOption | None, role: str, line: LaunchLine, tree: Tree) -> Iterator[Reference]:
    """Refer to every file below the root that the value of an option may name; to none if it is not given."""
    for path in paths_of(given.value, given.parts) if given is not None else ():
        target = relative(path, line, tree)
        if given is not None and target is not None:
            yield Reference(target, role, given.span, line.scope, line.command.is_elsewhere)


def module_path(name: str, line: LaunchLine, tree: Tree) -> str:
    """Return the file that `python -m NAME` runs, relative to the root; the most likely one when none exists."""
    flat = name.replace(".", "/")
    candidates = (file_named(f"{flat}{end}.py", line, tree) for end in ("", "/__main__", "/__init__"))
    found = next((file.path for file in candidates if file is not None), None)
    return found or relative(f"{flat}.py", line, tree) or f"{flat}.py"


#: Files that name the commands that a package installs.
_PACKAGE_FILES = ("pyproject.toml", "setup.cfg", "setup.py")


def console_script(name: str, line: LaunchLine, tree: Tree) -> str:
    """Return the file of the tree that an installed command runs; empty if no package of the tree declares it."""
    declared = re.compile(rf"(?m)(?:^|[\"'])[ \t]*{re.escape(name)}[ \t]*=[ \t]*[\"']?([A-Za-z_][\w.]*):\w")
    for file in (file_named(each, line, tree) for each in _PACKAGE_FILES if name):
        match = declared.search(file.text) if file is not None else None
        flat = match[1].replace(".", "/") if match is not None else ""
        for folder in ("", "src/") if flat else ():
            program = file_named(f"{folder}{flat}.py", line, tree)
            if program is not None:
                return program.path
    return ""


_PYTHON = re.compile(r"(python|pypy)[\d.]*")
#: `python` options that take a word; source: `python --help` of CPython 3.8 to 3.14.
_VALUED = ("-W", "-X", "--check-hash-based-pycs")


class PythonProgram(NamedTuple):
    """The script or module that `python ...` runs: `words[0]`, followed by its arguments."""

    interpreter: Word
    words: tuple[Word, ...]
    module: bool


def is_python(words: Sequence[Word]) -> bool:
    """Return whether the first word is a Python interpreter, judging by its name, or because a script or `-m` follows
    it.
    """
    if not words:
        return False
    text = text_of(words[0])
    if text is not None:
        return _PYTHON.fullmatch(posixpath.basename(text)) is not None or _is_called_like_python(words)
    if _PYTHON.fullmatch(posixpath.basename(known_prefix(words[0]))):
        return True
    if "py" not in words[0].spelling.lower() or len(words) < 2:
        return False
    following = text_of(words[1]) or ""
    return following in ("-m", "-u") or following.endswith(".py")


def _is_called_like_python(words: Sequence[Word]) -> bool:
    """Return whether a command with another name is called as only an interpreter is: `fluid -u train.py`."""
    if len(words) < 3 or "." in (text_of(words[0]) or ""):
        return False
    return text_of(words[1]) == "-u" and (text_of(words[2]) or "").endswith(".py")


def python_program(words: Sequence[Word]) -> PythonProgram | None:
    """Return the script or module after `python [options]`; None for `python -c`, `python -V` and an interactive
    session.
    """
    index = 1
    while index < len(words):
        word = words[index]
        text = text_of(word)
        if text is None:
            following = words[index + 1 : index + 100] if word.many else ()
            program_follows = any((text_of(each) or "").endswith(".py") or text_of(each) == "-m" for each in following)
            if known_prefix(word).startswith("-") or program_follows:
                index += 1
                continue
            return PythonProgram(words[0], tuple(words[index:]), False)
        if text == "-m":
            rest = tuple(words[index + 1 :])
            return PythonProgram(words[0], rest, True) if rest else None
        if text.startswith("-m") and not text.startswith("--"):
            return None
        if text in ("-c", "-V", "--version", "-h", "--help", "-") or re.fullmatch(r"-[a-zA-Z]*c", text):
            return None
        if text in _VALUED:
            index += 2
            continue
        if text.startswith("-"):
            if re.fullmatch(r"-[bBdEhiIOPqsSuvxR]+m", text):
                rest = tuple(words[index + 1 :])
                return PythonProgram(words[0], rest, True) if rest else None
            index += 1
            continue
        return PythonProgram(words[0], tuple(words[index:]), False)
    return None
