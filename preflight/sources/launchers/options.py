"""Reads the options of a command line the way the launcher's own parser would.

Unlike a real parser it works on words that may be unknown: `--rdzv_endpoint=$HEAD:29500` still gives the port,
and a word that may stand for several (`$EXTRA_ARGS`) makes the line incomplete instead of wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from preflight.job import Known, OneOf, Span, Unresolved, Value, alternatives, lift
from preflight.job.symbols import affixed
from preflight.lazy.dataclasses import dataclass
from preflight.sources.base import NO_VALUE, Word
from preflight.tables.row import Generated

#: A program is looked for this many words behind one that may stand for several.
_FARTHEST = 200


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `takes` is the number of words behind it; `dest` is what the claims call it.

    `pair`: name and value are two words or, with a `=`, one (`-genv NAME VALUE`, `-genv NAME=VALUE`).
    """

    dest: str
    takes: int = 1
    pair: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """All options of one program.

    Args:
        options: every spelling with its option.
        abbreviations: a unique beginning of a long option counts (argparse, getopt_long).
        interleaved: options are also taken behind the first positional word.
        single_dash: long options are written with one dash (Open MPI's `-np`, `-hostfile`).
    """

    options: Mapping[str, Option]
    abbreviations: bool = True
    interleaved: bool = False
    single_dash: bool = False

    def find(self, spelling: str) -> Option | None:
        """The option `spelling` means, exactly or abbreviated."""
        exact = self.options.get(spelling)
        if exact is not None or not self.abbreviations or not spelling.startswith("--") or len(spelling) < 4:
            return exact
        found = {self.options[name] for name in self.options if name.startswith(spelling)}
        return found.pop() if len(found) == 1 else None


@dataclass(frozen=True, slots=True)
class Given:
    """One option as it stands on the line. `parts` are the pieces of its value when it has several."""

    dest: str
    value: Value
    span: Span
    spelling: str
    parts: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class Scanned:
    """What a line comes to: options, and the words from the first positional one on.

    `incomplete`: a word may hide further options, so nothing may be said about options that were not seen.
    """

    given: tuple[Given, ...] = ()
    rest: tuple[Word, ...] = ()
    incomplete: bool = False
    unknown: tuple[Word, ...] = field(default=())

    def last(self, *dests: str) -> Given | None:
        """The option in force among `dests`: parsers let the last one win."""
        return next((given for given in reversed(self.given) if given.dest in dests), None)

    def every(self, dest: str) -> tuple[Given, ...]:
        """All occurrences of an option that may be repeated."""
        return tuple(given for given in self.given if given.dest == dest)


def table(
    valued: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
    *,
    abbreviations: bool = True,
    interleaved: bool = False,
    single_dash: bool = False,
) -> Table:
    """A table from `dest -> spellings separated by blanks`, once for options with a value and once for flags."""
    options: dict[str, Option] = {}
    for takes, names in ((1, valued or {}), (0, flags or {})):
        for dest, spellings in names.items():
            for spelling in spellings.split():
                options[spelling] = Option(dest, takes)
    return Table(options, abbreviations=abbreviations, interleaved=interleaved, single_dash=single_dash)


def generated(
    *tables: Generated,
    renamed: Mapping[str, str] | None = None,
    valued: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
    abbreviations: bool = True,
    interleaved: bool = False,
    single_dash: bool = False,
) -> Table:
    """A table from generated ones, the first one winning, with `--help` and what `valued` and `flags` add to them.

    `renamed` gives options of the parser the name by which the reader knows them. Options whose number of values
    is not fixed are taken to have one.
    """
    options = dict(table(valued, {"help": "-h --help", **(flags or {})}).options)
    for rows in tables:
        for row in rows.rows:
            option = Option((renamed or {}).get(row.dest, row.dest), int(row.takes) if row.takes.isdigit() else 1)
            for spelling in row.spellings:
                options.setdefault(spelling, option)
    return Table(options, abbreviations=abbreviations, interleaved=interleaved, single_dash=single_dash)


def scan(words: Sequence[Word], known: Table) -> Scanned:
    """Split `words` (without the program's own name) into options and the rest."""
    given: list[Given] = []
    unknown: list[Word] = []
    kept: list[Word] = []
    incomplete = False
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if word.many and not _is_option(word):
            if _hides_options(words[index : index + _FARTHEST]):
                incomplete = True
                continue
            return Scanned(tuple(given), tuple(words[index - 1 :]), incomplete, tuple(unknown))
        text = head(word)
        if text == "--" and isinstance(word.value, Known):
            return Scanned(tuple(given), (*kept, *words[index:]), incomplete, tuple(unknown))
        if not text.startswith("-") or text == "-":
            if known.interleaved:
                kept.append(word)
                continue
            return Scanned(tuple(given), tuple(words[index - 1 :]), incomplete, tuple(unknown))
        taken = _one(word, text, words[index : index + 2], known)
        if taken is None:
            unknown.append(word)
            incomplete = incomplete or isinstance(word.value, Unresolved)
            continue
        found, consumed = taken
        given.extend(found)
        index += consumed
    return Scanned(tuple(given), tuple(kept), incomplete, tuple(unknown))


def _one(word: Word, text: str, following: Sequence[Word], known: Table) -> tuple[list[Given], int] | None:
    """The option(s) `word` holds and how many further words they take; None for an unknown one."""
    name, equals, _ = text.partition("=")
    option = known.find(name)
    if option is not None and equals:
        return [
            Given(
                option.dest,
                _behind(word, len(name) + 1),
                word.span,
                word.spelling,
                _pieces(word, len(name) + 1),
            )
        ], 0
    if option is not None and isinstance(word.value, Known):
        if not option.takes:
            return [Given(option.dest, Known(True), word.span, word.spelling)], 0
        if not following:
            return [Given(option.dest, NO_VALUE, word.span, word.spelling)], 0
        if option.pair and "=" in head(following[0]):
            option = Option(option.dest)
        if option.takes > 1:
            last = following[min(option.takes, len(following)) - 1]
            spelled = " ".join(item.spelling for item in (word, *following[: option.takes]))
            whole = lift(lambda *each: " ".join(map(str, each)), *(item.value for item in following[: option.takes]))
            return [Given(option.dest, whole, joined(word.span, last.span), spelled)], option.takes
        value = following[0]
        return [
            Given(
                option.dest,
                value.value,
                joined(word.span, value.span),
                f"{word.spelling} {value.spelling}",
                value.parts,
            )
        ], 1
    if text.startswith("--") or (known.single_dash and known.options.get(text[:2]) is None):
        return None
    return _bundle(word, text, following, known)


def _bundle(word: Word, text: str, following: Sequence[Word], known: Table) -> tuple[list[Given], int] | None:
    """Short options in one word: `-N4`, `-vn2`, `-lv`."""
    found: list[Given] = []
    for position in range(1, len(text)):
        option = known.options.get("-" + text[position])
        if option is None:
            return None
        if not option.takes:
            found.append(Given(option.dest, Known(True), word.span, word.spelling))
            continue
        if position + 1 < len(text) or not isinstance(word.value, Known):
            start = position + 1
            found.append(Given(option.dest, _behind(word, start), word.span, word.spelling, _pieces(word, start)))
            return found, 0
        if not following:
            found.append(Given(option.dest, NO_VALUE, word.span, word.spelling))
            return found, 0
        value = following[0]
        spelling = f"{word.spelling} {value.spelling}"
        found.append(Given(option.dest, value.value, joined(word.span, value.span), spelling, value.parts))
        return found, 1
    return found, 0


def head(word: Word) -> str:
    """What is known of the beginning of a word: all of it, or up to the first unknown piece."""
    if isinstance(word.value, Known):
        return str(word.value.value)
    if isinstance(word.value, OneOf):
        return _common_beginning([str(value) for value in word.value.values])
    if word.parts:
        first = word.parts[0]
        return str(first.value) if isinstance(first, Known) else ""
    bare = word.spelling.strip("\"'")
    cut = min((at for at in (bare.find("$"), bare.find("`")) if at >= 0), default=len(bare))
    return bare[:cut].replace('"', "").replace("'", "")


def text_of(word: Word) -> str | None:
    """The word when it is known, else None."""
    return str(word.value.value) if isinstance(word.value, Known) and not word.many else None


def joined(first: Span, last: Span) -> Span:
    """From the start of one span to the end of another; only the first where they do not follow each other."""
    if first.path != last.path or (last.end_line, last.end_column) < (first.line, first.column):
        return first
    return Span(first.path, first.line, first.column, last.end_line, last.end_column, first.snippet)


def pieces_of(value: Value, parts: tuple[Value, ...]) -> tuple[Value, ...]:
    """A value as the pieces it was put together from; itself when it is in one piece."""
    return parts if parts and isinstance(value, Unresolved) else (value,)


def glue(parts: Sequence[Value]) -> Value:
    """The value that pieces make together."""
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
            return affixed(hole.why, *around)
    return lift(lambda *each: "".join(str(piece) for piece in each), *parts)


def split_last(parts: Sequence[Value], sign: str) -> tuple[Value, Value] | None:
    """The values before and behind the last known `sign`; None when there is none among the known pieces."""
    for index in range(len(parts) - 1, -1, -1):
        part = parts[index]
        if not isinstance(part, Known) or sign not in str(part.value):
            continue
        before, _, behind = str(part.value).rpartition(sign)
        left = [*parts[:index], *([Known(before)] if before else [])]
        right = [*([Known(behind)] if behind else []), *parts[index + 1 :]]
        return glue(left) if left else Known(""), glue(right) if right else Known("")
    return None


def texts(value: Value) -> tuple[str, ...]:
    """Every text a value may be."""
    return tuple(str(item) for item in alternatives(value))


def _behind(word: Word, start: int) -> Value:
    if isinstance(word.value, Unresolved):
        return glue(_pieces(word, start) or (word.value,))
    return lift(lambda item: str(item)[start:], word.value)


def _pieces(word: Word, start: int) -> tuple[Value, ...]:
    if not word.parts:
        return ()
    first = word.parts[0]
    if not isinstance(first, Known) or len(str(first.value)) < start:
        return ()
    rest = str(first.value)[start:]
    return (*((Known(rest),) if rest else ()), *word.parts[1:])


def _common_beginning(found: Sequence[str]) -> str:
    first, last = min(found), max(found)
    at = 0
    while at < len(first) and at < len(last) and first[at] == last[at]:
        at += 1
    return first[:at]


def _is_option(word: Word) -> bool:
    return head(word).startswith("-")


def _hides_options(following: Sequence[Word]) -> bool:
    """Whether a program still comes: then the unknown words before it can only have been options."""
    for word in following[:_FARTHEST]:
        text = text_of(word)
        if text is None:
            if head(word).startswith("-"):
                continue
            if word.spelling.strip("\"'{}").endswith(".py"):
                return True
            continue
        if text.endswith((".py", ".pyc")) or text in (
            "-m",
            "--module",
            "torchrun",
            "deepspeed",
            "python",
            "python3",
            "bash",
        ):
            return True
    return False
