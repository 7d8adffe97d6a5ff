"""`read`, `mapfile` and `readarray`: the variables that they set from text that is known."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from preflight.sources.shell.shell_document import Lit, Piece, Place, Text, cover
from preflight.sources.shell.state import Kind, Slot, State
from preflight.sources.shell.words import Field, Part, hole, known, split_fields

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
