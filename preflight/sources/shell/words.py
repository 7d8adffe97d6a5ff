"""Values of words and variables: known characters, holes and alternatives, and operations on them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from preflight._util.budget import note_skipped
from preflight.model.job import Known, OneOf, Unresolved, Value
from preflight.model.job.value import MAX_ALTERNATIVES, Symbol, symbols_in
from preflight.sources.base import UnknownKind, UnknownOrigin
from preflight.sources.shell.shell_document import Alt, Hole, Lit, Piece, Place, Text, cover

#: Characters of one value; longer ones become a hole.
MAX_VALUE_LENGTH = 200_000
#: Branches that build on what earlier ones left, within one value; comparing two values visits all of them.
MAX_DEPTH = 8
#: Pieces of one value.
MAX_PIECES = 2_000
#: A placeholder of a template is one word, with the blanks in it.
_WORD = re.compile(r"(?:\{\{[^{}\n]{0,200}\}\}|[^ \t\n])+")
_BLANK = re.compile(r"[ \t\n]")


@dataclass(slots=True, unsafe_hash=True)
class Field:
    """One word after expansion; `many`: whether it may be any number of words."""

    text: Text
    place: Place
    many: bool = False

    @property
    def value(self) -> Value:
        """Return the word as a value."""
        return value_of(self.text)

    @property
    def known(self) -> str | None:
        """Return the text when there is exactly one possibility."""
        return None if self.many else known(self.text)


@dataclass(slots=True, unsafe_hash=True)
class Part:
    """One piece of a word being expanded.

    Args:
        piece: the text; None for an empty quoted string.
        split: whether it is split into words, as results of unquoted expansions are.
        split_before: whether it starts a new word.
    """

    piece: Piece | None
    split: bool = False
    split_before: bool = False


def known(text: Text) -> str | None:
    """Return the characters when all of them are known."""
    if len(text) == 1:
        piece = text[0]
        return piece.text if isinstance(piece, Lit) else None
    plain = [piece.text for piece in text if isinstance(piece, Lit)]
    return "".join(plain) if len(plain) == len(text) else None


def possible_texts(text: Text) -> list[str] | None:
    """Return every string that the text can be, up to `MAX_ALTERNATIVES`; None if it has a hole or more
    alternatives.
    """
    single = known(text)
    if single is not None:
        return [single]
    choices: list[list[str]] = []
    count = 1
    for piece in text:
        if isinstance(piece, Lit):
            choices.append([piece.text])
        elif isinstance(piece, Alt):
            inner: list[str] = []
            for option in piece.options:
                found = possible_texts(option)
                if found is None:
                    return None
                inner.extend(found)
            choices.append(inner)
            count *= len(inner)
            if count > MAX_ALTERNATIVES * 4:
                return None
        else:
            return None
    seen = dict.fromkeys("".join(combination) for combination in itertools.product(*choices))
    return list(seen) if len(seen) <= MAX_ALTERNATIVES else None


def reasons(text: Text) -> str:
    """Return why the text is unknown, each reason once."""
    found = dict.fromkeys(piece.why for piece in _holes(text, 0))
    return ", and ".join(list(found)[:4]) or f"one of more than {MAX_ALTERNATIVES} values"


def unresolved(text: Text) -> Unresolved:
    """Return the value of unknown text: why it is unknown, and the variables of the caller that it depends on."""
    names = (piece.origin.variable for piece in _holes(text, 0) if piece.origin is not None)
    return Unresolved(reasons(text), tuple(dict.fromkeys(name for name in names if name)))


def origin_of(text: Text) -> UnknownOrigin | None:
    """Return the origin that all unknown pieces of the text share; None if they have none, or several."""
    found = {piece.origin for piece in _holes(text, 0)}
    return found.pop() if len(found) == 1 else None


def _holes(text: Text, depth: int) -> Iterator[Hole]:
    for piece in text:
        if isinstance(piece, Hole):
            yield piece
        elif isinstance(piece, Alt) and depth < MAX_DEPTH:
            for option in piece.options:
                yield from _holes(option, depth + 1)


def value_of(text: Text) -> Value:
    """Return the text as a value."""
    single = known(text)
    if single is not None:
        return Known(single)
    found = possible_texts(text)
    if found is None:
        return unresolved(text)
    return Known(found[0]) if len(found) == 1 else OneOf(tuple(found))


def spelling_of(text: Text) -> str:
    """Return the text as the user wrote it, without the quotes."""
    return text[0].spelling if len(text) == 1 else "".join([piece.spelling for piece in text])


def literal(value: str, place: Place, spelled: str | None = None) -> Text:
    """Return computed text, located where it is computed."""
    return (Lit(value, place, False, spelled),) if value or spelled is not None else ()


def join_words(fields: Iterable[Field], place: Place) -> Text:
    """Return the words as one string, separated by blanks."""
    pieces: list[Piece] = []
    for number, item in enumerate(fields):
        pieces += [*literal(" ", place, " "), *item.text] if number else item.text
    return tuple(pieces)


def joined(parts: Iterable[Part]) -> Text:
    """Return the parts of a word as one string, not split."""
    return tuple(part.piece for part in parts if part.piece is not None)


def written_path(field: Field) -> str | None:
    """Return the path that a word names, `$PWD/node.sh` as one relative to where the script runs; None when it is
    unknown.
    """
    if field.known is not None or len(field.text) < 2:
        return field.known
    rest = known(field.text[1:])
    if is_start_directory(field.text[:1]) and rest is not None and rest.startswith("/"):
        return rest.lstrip("/")
    return None


def is_start_directory(text: Text) -> bool:
    """Return whether the text is only the folder in which the script was started."""
    first = text[0] if len(text) == 1 else None
    return isinstance(first, Hole) and Symbol.START_DIRECTORY in symbols_in(Unresolved(first.why))


def hole(why: str, place: Place, spelling: str, *, many: bool = False, origin: UnknownOrigin | None = None) -> Text:
    """Return unknown text."""
    return (Hole(why[:300], place, spelling[:300], many, origin),)


def computed_text(values: Sequence[str], place: Place, spelling: str) -> Text:
    """Return one of `values`, computed at `place`."""
    unique = list(dict.fromkeys(values))
    if len(unique) == 1:
        return literal(unique[0], place, spelling)
    if len(unique) > MAX_ALTERNATIVES or not unique:
        return hole(f"one of more than {MAX_ALTERNATIVES} values", place, spelling)
    return (Alt(tuple(literal(value, place) for value in unique), place, spelling),)


def map_text(text: Text, function: Callable[[str], str], place: Place, spelling: str) -> Text:
    """Apply `function` to every alternative; unknown text keeps its reason."""
    found = possible_texts(text)
    if found is None:
        many = any(isinstance(piece, Hole) and piece.many for piece in text)
        why, origin = reasons(text), origin_of(text)
        if origin is not None and origin.kind is UnknownKind.PROGRAM_PATH:
            # A part of the path of a program is not the program.
            why, origin = f"a part of {why}", None
        return hole(why, place, spelling, many=many, origin=origin)
    return computed_text([function(item) for item in found], place, spelling)


def replace_spans(
    text: Text, spans: Callable[[str], Iterable[tuple[int, int]]], replacement: Callable[[Lit], Iterable[Piece]]
) -> Text:
    """Replace the parts of literal pieces that `spans` yields, in order."""
    pieces: list[Piece] = []
    for piece in text:
        if not isinstance(piece, Lit):
            pieces.append(piece)
            continue
        at = 0
        for start, end in spans(piece.text):
            if start > at:
                pieces.append(piece.cut(at, start))
            pieces.extend(replacement(piece.cut(start, end)))
            at = end
        if at < len(piece.text):
            pieces.append(piece.cut(at, len(piece.text)))
    return tuple(pieces)


def is_empty(text: Text) -> bool | None:
    """Return whether the text is empty; None when that depends on unknown values."""
    if any(isinstance(piece, Lit) and piece.text for piece in text):
        return False
    empties = {not item for item in possible_texts(text) or ()}
    return empties.pop() if len(empties) == 1 else None


def limit_size(text: Text, place: Place, spelling: str) -> Text:
    """Return the text, or a hole if it is too long."""
    if len(text) > MAX_PIECES or sum(len(piece.text) for piece in text if isinstance(piece, Lit)) > MAX_VALUE_LENGTH:
        note_skipped(f"a value of more than {MAX_VALUE_LENGTH} characters or {MAX_PIECES} pieces was not followed")
        return hole("the value is too long to follow", place, spelling, many=True)
    return text


def relocate(text: Text, place: Place, spelling: str) -> Text:
    """Return the text of a variable as used at `place`.

    A value that is one plain word is located where it is used (`--tp $TP`). A value with flags or several words is
    located where those were written.
    """
    first = True
    for piece in text:
        if isinstance(piece, Lit):
            if _BLANK.search(piece.text) or (first and piece.text.startswith("-")):
                return text
            first = first and not piece.text
        elif isinstance(piece, Alt):
            first = False
            if any(_BLANK.search(option) or option.startswith("-") for option in possible_texts((piece,)) or ()):
                return text
        else:
            first = False
    moved: list[Piece] = []
    shown = spelling
    for piece in text:
        if isinstance(piece, Lit):
            moved.append(Lit(piece.text, place, False, shown))
        elif isinstance(piece, Hole):
            moved.append(Hole(piece.why, place, shown, piece.many, piece.origin))
        else:
            moved.append(Alt(piece.options, place, shown))
        shown = ""
    return tuple(moved)


def split_fields(parts: Iterable[Part], node: Place, separators: str = " \t\n") -> list[Field]:
    """Split the parts of one written word into words; `separators` is the shell's IFS."""
    word = _WORD if separators == " \t\n" else _word_between(separators)
    fields: list[Field] = []
    current: list[Piece] = []
    started = False
    many = False

    def finish() -> None:
        nonlocal started, many
        if started:
            text = tuple(current)
            fields.append(Field(text, _field_place(text, node), many and len(text) == 1))
        current.clear()
        started = many = False

    for part in parts:
        if part.split_before:
            finish()
        piece = part.piece
        if piece is None:
            started = started or not part.split_before
            continue
        if not part.split:
            started = True
            if not isinstance(piece, Lit) or piece.text:
                current.append(piece)
        elif isinstance(piece, Lit):
            if not piece.text:
                continue
            end = 0
            for match in word.finditer(piece.text):
                if match.start() > end:
                    finish()
                started = True
                current.append(piece.cut(match.start(), match.end()))
                end = match.end()
            if end < len(piece.text):
                finish()
        elif isinstance(piece, Hole):
            started = True
            current.append(piece)
            many = many or piece.many
        else:
            found = possible_texts((piece,))
            if found is not None and all(item and not _BLANK.search(item) for item in found):
                started = True
                current.append(piece)
                continue
            # The text that a branch appends (`ARGS="$ARGS --fp16"`) begins with a blank, so it is not part of the word
            # before.
            if _has_blank_edge(piece, first=True):
                finish()
            started = many = True
            current.append(_to_hole(piece, found))
            if _has_blank_edge(piece, first=False):
                finish()
    finish()
    return fields


def _word_between(separators: str) -> re.Pattern[str]:
    return re.compile(f"[^{re.escape(separators)}]+") if separators else re.compile(".+", re.DOTALL)


def _has_blank_edge(piece: Alt, *, first: bool) -> bool:
    """Return whether every non-empty alternative begins (or ends) with a blank."""
    for option in piece.options:
        if option:
            edge = option[0] if first else option[-1]
            if not isinstance(edge, Lit) or not _BLANK.match(edge.text[:1] if first else edge.text[-1:]):
                return False
    return True


def _to_hole(piece: Alt, found: list[str] | None) -> Hole:
    """Replace text whose number of words differs between alternatives with a hole."""
    if found is None:
        return Hole(reasons((piece,)), piece.place, piece.spelling, True, origin_of((piece,)))
    shown = " or ".join(repr(item) if item else "nothing" for item in found[:3])
    return Hole(f"{shown}, depending on a branch"[:300], piece.place, piece.spelling, True)


def _field_place(text: Text, node: Place) -> Place:
    """Return the location of a word: the written word it is part of, or where the text of an expansion was written."""
    if not text:
        return node
    if len(text) == 1:
        return text[0].place
    inside = [piece.place.within(node) for piece in text]
    if all(inside):
        return cover(text, node)
    if any(inside):
        return node
    return cover(text, text[0].place)


def skip_characters(text: Text, skipped: int) -> Text:
    """Return the text without its first `skipped` characters; a hole counts as none."""
    pieces = []
    for piece in text:
        length = len(getattr(piece, "text", ""))
        if skipped >= length:
            skipped -= length
            continue
        pieces.append(piece.cut(skipped, length) if skipped and hasattr(piece, "cut") else piece)
        skipped = 0
    return tuple(pieces)


def common_ends(rows: Sequence[Sequence[object]]) -> tuple[int, int]:
    """Return the lengths of the common prefix and of the common suffix of all rows; the two do not overlap."""
    first, shortest = rows[0], min(len(row) for row in rows)
    head = 0
    while head < shortest and all(row[head] == first[head] for row in rows):
        head += 1
    tail = 0
    while tail < shortest - head and all(row[-1 - tail] == first[-1 - tail] for row in rows):
        tail += 1
    return head, tail


def join_texts(texts: Sequence[Text], place: Place, spelling: str) -> Text:
    """Join the values of a variable after branches: the common beginning and end are kept, and the rest becomes
    alternatives.
    """
    first = texts[0]
    if all(text == first for text in texts[1:]):
        return first
    head, tail = common_ends(texts)
    middles = list(dict.fromkeys(text[head : len(text) - tail] for text in texts))
    single = [middle[0] if len(middle) == 1 else None for middle in middles]
    options = [one.options if isinstance(one, Alt) else (text,) for one, text in zip(single, middles, strict=True)]
    unique = _distinct([option for each in options for option in each])
    if len(unique) == 1:
        merged: Text = unique[0]
    elif len(unique) > MAX_ALTERNATIVES:
        merged = hole(f"one of more than {MAX_ALTERNATIVES} values", place, spelling, many=True)
    elif head == tail == 0 and all(len(item) == 1 and isinstance(item[0], Hole) for item in unique):
        why = ", or ".join(dict.fromkeys(reasons(item) for item in unique))
        holes = tuple(piece for item in unique for piece in item)
        many = any(isinstance(piece, Hole) and piece.many for piece in holes)
        merged = hole(why, place, spelling, many=many, origin=origin_of(holes))
    else:
        joined = Alt(tuple(unique), place, spelling)
        merged = (joined,) if joined.depth <= MAX_DEPTH else hole(reasons((joined,)), place, spelling, many=True)
    return first[:head] + merged + (first[len(first) - tail :] if tail else ())


def _distinct(texts: Sequence[Text]) -> list[Text]:
    """Return the texts without those that differ only in location."""
    seen: dict[object, Text] = {}
    for text in texts:
        single = known(text)
        seen.setdefault(text if single is None else single, text)
    return list(seen.values())


def is_count(word: str) -> bool:
    """Return whether the word is a whole number of up to nine digits; `isdigit` also accepts characters that `int`
    rejects.
    """
    return 0 < len(word) <= 9 and word.isascii() and word.isdecimal()


def known_strings(fields: Sequence[Field]) -> list[str] | None:
    """Return the words as strings when all of them are known, else None."""
    found = [text for item in fields if (text := item.known) is not None]
    return found if len(found) == len(fields) else None
