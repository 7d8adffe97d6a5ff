"""Commands that take words from their input: `read`, `mapfile`, `xargs` and GNU `parallel`.

Options: the manuals of GNU findutils 4.9 and of GNU parallel 20231122.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from preflight.sources.shell.shell_document import Lit, Piece, Place, Text, cover
from preflight.sources.shell.state import Kind, Slot, State
from preflight.sources.shell.words import Field, Part, hole, is_count, known, literal, replace_spans, split_fields

_NAME = re.compile(r"[A-Za-z_]\w*")
#: Options that take a word; source: the manual of bash 5.2.
_VALUED = {"read": frozenset("adinNptu"), "mapfile": frozenset("dnOsuCc"), "readarray": frozenset("dnOsuCc")}
#: Lines of a text that are read.
MAX_LINES = 256


@dataclass(frozen=True, slots=True)
class Reader:
    """A `read` command: the variables it sets, and the array if it has `-a`.

    `plain`: whether it reads up to the end of a line; with `-d` and `-n` it ends elsewhere. `whole`: whether it reads
    all of its input (`-d ''`).
    """

    names: tuple[Field, ...]
    array: Field | None
    plain: bool
    whole: bool = False


def parse(fields: Sequence[Field]) -> Reader:
    """Return what `read -r a b` sets; the first field is the command itself."""
    names: list[Field] = []
    array: Field | None = None
    plain, whole = True, False
    valued = _VALUED.get(fields[0].known or "", _VALUED["read"])
    index = 1
    while index < len(fields):
        word = fields[index].known
        if word is not None and word.startswith("-") and len(word) > 1 and not names:
            letter = word[-1]
            plain = plain and not any(c in word[1:] for c in "dnNu")
            if letter in valued:
                index += 1
                if letter == "a" and index < len(fields):
                    array = fields[index]
                if letter == "d" and index < len(fields):
                    whole = fields[index].known in ("", "\\0")
        elif word is not None and _NAME.fullmatch(word):
            names.append(fields[index])
        index += 1
    return Reader(tuple(names), array, plain, whole and array is None and len(names) == 1)


def lines_of(text: Text) -> Iterator[Text]:
    """The lines of a text, each piece with its own location; a line that ends the text may lack its newline."""
    current: list[Piece] = []
    for piece in text:
        if not isinstance(piece, Lit):
            current.append(piece)
            continue
        start = 0
        while (end := piece.text.find("\n", start)) >= 0:
            if end > start:
                current.append(piece.cut(start, end))
            yield tuple(current)
            current = []
            start = end + 1
        if start < len(piece.text):
            current.append(piece.cut(start, len(piece.text)))
    if current:
        yield tuple(current)


def assign_whole(state: State, reader: Reader, text: Text, fallback: Place) -> None:
    """Set the variable of `read -r -d '' NAME` to all of its input."""
    name = reader.names[0].known or "REPLY"
    state.put(name, Slot(Kind.TEXT, cover(text, fallback), text))


def assign_line(state: State, reader: Reader, line: Text, separators: str, fallback: Place) -> None:
    """Set the variables of `read` from one line; the last one takes the rest of the line."""
    place = cover(line, line[0].place if line else fallback)
    words = split_fields([Part(piece, split=True) for piece in line], place, separators)
    if reader.array is not None:
        state.put(reader.array.known or "_", Slot(Kind.ARRAY, place, items=tuple(words)))
        return
    names = [item.known or "_" for item in reader.names] or ["REPLY"]
    for number, name in enumerate(names):
        if number == len(names) - 1 and len(words) > len(names):
            text = tuple(_join_words(words[number:], place))
        elif number < len(words):
            text = words[number].text
        else:
            text = ()
        if len(names) == 1 and not separators:
            text = line
        state.put(name, Slot(Kind.TEXT, words[number].place if number < len(words) else place, text))


def _join_words(words: Sequence[Field], place: Place) -> Iterator[Piece]:
    for number, item in enumerate(words):
        if number:
            yield Lit(" ", place, False)
        yield from item.text


def assign_array(state: State, fields: Sequence[Field], text: Text | None, place: Place) -> None:
    """Set the array of `mapfile -t NAME` to the lines of its input, or to an unknown one."""
    name = parse(fields).names[-1:] or ()
    if not name:
        return
    target = name[0].known or "MAPFILE"
    options = {word for item in fields[1:] if (word := item.known or "-?").startswith("-")}
    # `-n`, `-s`, `-d` and others select or divide lines in another way.
    lines = list(islice(lines_of(text), MAX_LINES + 1)) if text is not None and options <= {"-t"} else None
    if lines is None or len(lines) > MAX_LINES or any(known(line) is None for line in lines):
        why = f"${target} is read from the input"
        state.put(target, Slot(Kind.TEXT, place, hole(why, place, f"${target}", many=True)))
        return
    items = tuple(Field(line, cover(line, place)) for line in lines)
    state.put(target, Slot(Kind.ARRAY, place, items=items))


PROGRAMS = frozenset(("xargs", "parallel"))
#: Commands of one line that are followed.
MAX_STARTS = 64
_XARGS_VALUED = (
    "-n -P -I -L -a -d -E -s --max-args --max-procs --replace --max-lines --arg-file --delimiter --max-chars"
)
_PARALLEL_VALUED = (
    "-j --jobs -P --max-procs -C --colsep -a --arg-file -S --sshlogin --sshloginfile --slf --halt --delay --joblog"
    " --results --env -I -N -n --max-args --max-replace-args --timeout --retries --wd --workdir --tmpdir --memfree"
    " --load --tagstring -d --delimiter --basefile --bf --return --trc --transferfile --shebang --seqreplace --block"
    " --sshdelay --header --limit --nice"
)
_SOURCES = {":::": False, ":::+": False, "::::": True, "::::+": True}
_PLACEHOLDER = re.compile(r"\{(?:(\d{1,2})?(\.|/{1,2}|/\.)?|#|%)\}")
_DELIMITERS = {"\\n": "\n", "\\t": "\t", "\\0": "\0"}


@dataclass(frozen=True, slots=True)
class Starts:
    """The commands that a line starts.

    Args:
        commands: the words of each, in order.
        code: whether a shell reads the words of each as one line of code.
        concurrent: whether they run at the same time.
        certain: whether these are all; otherwise one command with unknown arguments represents any number of them.
    """

    commands: tuple[tuple[Field, ...], ...]
    code: bool
    concurrent: bool
    certain: bool = True


@dataclass(slots=True)
class _Line:
    """The options of the program, and the words after them."""

    options: dict[str, Field | None]
    rest: list[Field]

    def text(self, *names: str) -> str | None:
        """The value of the first of these options that is given."""
        for name in names:
            item = self.options.get(name)
            if item is not None:
                return item.known
        return None


def starts_of(name: str, fields: Sequence[Field], standard_input: Text | None, place: Place) -> Starts | None:
    """Return the commands that `xargs` or `parallel` starts; None when it names no command.

    Args:
        name: the program.
        fields: its words after its name.
        standard_input: the text; None when it is unknown.
        place: where the line is.
    """
    return _xargs(fields, standard_input, place) if name == "xargs" else _parallel(fields, standard_input, place)


def _scan(fields: Sequence[Field], valued: Sequence[str]) -> _Line:
    options: dict[str, Field | None] = {}
    index = 0
    while index < len(fields):
        item = fields[index]
        word = item.known
        if word is None or not word.startswith("-") or word == "-":
            break
        index += 1
        if word == "--":
            break
        if word in valued:
            options[word] = fields[index] if index < len(fields) else None
            index += 1
        elif word.startswith("--"):
            name, equals, value = word.partition("=")
            options[name] = Field(literal(value, item.place), item.place) if equals else None
        elif word[:2] in valued:
            options[word[:2]] = Field(literal(word[2:], item.place), item.place)
        else:
            options[word] = None
    return _Line(options, list(fields[index:]))


def _xargs(fields: Sequence[Field], standard_input: Text | None, place: Place) -> Starts | None:
    line = _scan(fields, _XARGS_VALUED.split())
    if not line.rest:
        return None
    replaced = line.text("-I", "--replace") or ("{}" if {"-I", "-i", "--replace"} & set(line.options) else "")
    concurrent = (line.text("-P", "--max-procs") or "1") != "1"
    if "-a" in line.options or "--arg-file" in line.options:
        standard_input = None
    groups = _groups(line, standard_input, place, by_line=bool(replaced))
    if groups is None:
        unknown = Field(
            hole("the input of xargs", place, replaced or "an argument", many=not replaced), place, not replaced
        )
        return Starts((_fill_template(line.rest, replaced, (unknown,)),), False, concurrent, certain=False)
    return Starts(tuple(_fill_template(line.rest, replaced, group) for group in groups), False, concurrent)


def _groups(line: _Line, standard_input: Text | None, place: Place, *, by_line: bool) -> list[tuple[Field, ...]] | None:
    """The arguments of each command that xargs starts."""
    if standard_input is None or any(not isinstance(piece, Lit) for piece in standard_input):
        return None
    delimiter = line.text("-d", "--delimiter")
    if by_line or delimiter is not None or "-0" in line.options:
        separator = _DELIMITERS.get(delimiter or "\\n", delimiter or "\n")
        items = [
            Field(text, cover(text, place))
            for text in (lines_of(standard_input) if separator == "\n" else _cut(standard_input, separator))
        ]
        items = [item for item in items if (item.known or "").strip()]
    else:
        items = [
            word
            for text in lines_of(standard_input)
            for word in split_fields([Part(piece, split=True) for piece in text], place)
        ]
    if line.text("-L", "--max-lines") == "1" and not by_line:
        rows = [
            tuple(split_fields([Part(piece, split=True) for piece in text], place)) for text in lines_of(standard_input)
        ]
        return rows if len(rows) <= MAX_STARTS else None
    count = line.text("-n", "--max-args")
    if count is not None and not is_count(count):
        return None
    size = 1 if by_line else int(count or 0) or max(len(items), 1)
    groups = [tuple(items[at : at + size]) for at in range(0, len(items), size)]
    return groups if len(groups) <= MAX_STARTS else None


def _cut(text: Text, separator: str) -> Iterator[Text]:
    for piece in text:
        if isinstance(piece, Lit):
            at = 0
            for part in piece.text.split(separator):
                yield (piece.cut(at, at + len(part)),)
                at += len(part) + len(separator)


def _fill_template(words: Sequence[Field], replaced: str, group: tuple[Field, ...]) -> tuple[Field, ...]:
    """The words of one command of xargs."""
    if not replaced:
        return (*words, *group)
    value = tuple(piece for item in group for piece in item.text)
    pattern = re.compile(re.escape(replaced))
    return tuple(Field(_substitute(item.text, pattern, {replaced: value}), item.place, item.many) for item in words)


def _substitute(text: Text, pattern: re.Pattern[str], values: Mapping[str, Text]) -> Text:
    """The text with each match of `pattern` replaced by its value; a match without a value stays."""
    return replace_spans(
        text,
        lambda literal: (match.span() for match in pattern.finditer(literal) if match.group() in values),
        lambda found: values[found.text],
    )


def _parallel(fields: Sequence[Field], standard_input: Text | None, place: Place) -> Starts | None:
    line = _scan(fields, _PARALLEL_VALUED.split())
    at = next((n for n, item in enumerate(line.rest) if (item.known or "") in _SOURCES), len(line.rest))
    template, sources = line.rest[:at], line.rest[at:]
    concurrent = line.text("-j", "--jobs", "-P", "--max-procs") != "1"
    rows = _rows(line, sources, standard_input, place)
    if rows is None or len(rows) > MAX_STARTS:
        if not template:
            return None
        unknown = hole("the arguments of parallel", place, "{}")
        return Starts((_row_words(template, [Field(unknown, place)], 1, place),), True, concurrent, certain=False)
    if not template:
        return Starts(tuple(tuple(row) for row in rows), True, concurrent)
    return Starts(
        tuple(_row_words(template, row, number, place) for number, row in enumerate(rows, start=1)), True, concurrent
    )


def _rows(line: _Line, sources: Sequence[Field], standard_input: Text | None, place: Place) -> list[list[Field]] | None:
    """The arguments of each command that parallel starts, one from each source of input."""
    lists: list[list[Field]] = []
    linked = "--link" in line.options or "--xapply" in line.options
    if {"-a", "--arg-file"} & set(line.options):
        return None
    if not sources:
        if standard_input is None or any(not isinstance(piece, Lit) for piece in standard_input):
            return None
        rows = [[Field(text, cover(text, place))] for text in lines_of(standard_input) if text]
        separator = line.text("-C", "--colsep")
        if separator is not None:
            rows = [_columns(row[0], separator) for row in rows]
        return rows
    for item in sources:
        word = item.known or ""
        if word in _SOURCES:
            if _SOURCES[word]:
                return None
            linked = linked or word.endswith("+")
            lists.append([])
        elif item.many:
            return None
        else:
            lists[-1].append(item)
    if linked:
        longest = max((len(items) for items in lists), default=0)
        return [[items[n % len(items)] for items in lists if items] for n in range(min(longest, MAX_STARTS + 1))]
    product = itertools.islice(itertools.product(*lists), MAX_STARTS + 1)
    return [list(row) for row in product]


def _columns(item: Field, separator: str) -> list[Field]:
    plain = item.known or ""
    try:
        parts = re.split(separator, plain) if len(separator) < 20 else [plain]
    except re.error:
        parts = [plain]
    return [Field(literal(part, item.place), item.place) for part in parts]


def _row_words(template: Sequence[Field], row: Sequence[Field], number: int, place: Place) -> tuple[Field, ...]:
    """The words of one command of parallel: the template with `{}`, `{1}`, `{#}` replaced."""
    whole: list[Piece] = []
    for at, item in enumerate(row):
        if at:
            whole.append(Lit(" ", place, False))
        whole.extend(item.text)
    values: dict[str, Text] = {
        "{}": tuple(whole),
        "{#}": literal(str(number), place),
        "{%}": literal(str(number), place),
    }
    for at, item in enumerate(row, start=1):
        values[f"{{{at}}}"] = item.text
    if not any(_PLACEHOLDER.search(piece.text) for item in template for piece in item.text if isinstance(piece, Lit)):
        return (*template, Field(tuple(whole), cover(tuple(whole), place)))
    pattern = re.compile(_PLACEHOLDER.pattern)
    return tuple(Field(_substitute(item.text, pattern, values), item.place, item.many) for item in template)
