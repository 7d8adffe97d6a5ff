"""What words and variables hold: known characters, holes and alternatives, and what can be done with them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence

from preflight.job import Known, OneOf, Unresolved, Value
from preflight.job.value import MOST_ALTERNATIVES
from preflight.lazy.dataclasses import dataclass
from preflight.lazy.patterns import lazy_pattern
from preflight.sources.shell.document import Alt, Hole, Lit, Piece, Place, Text, cover

#: Characters of one value; longer ones become a hole.
LONGEST_VALUE = 200_000
#: Pieces of one value.
MOST_PIECES = 2_000
_WORD = lazy_pattern(r"[^ \t\n]+")
_BLANK = lazy_pattern(r"[ \t\n]")


@dataclass(slots=True, unsafe_hash=True)
class Field:
    """One word after expansion; `many` says that it may be any number of words."""

    text: Text
    place: Place
    many: bool = False

    @property
    def value(self) -> Value:
        """What the word is."""
        return value_of(self.text)

    @property
    def known(self) -> str | None:
        """Its text when there is exactly one."""
        return None if self.many else known(self.text)


@dataclass(slots=True, unsafe_hash=True)
class Part:
    """A piece of a word being expanded. Unquoted expansion results are split; `split_before` starts a new word."""

    piece: Piece | None
    split: bool = False
    split_before: bool = False


def known(text: Text) -> str | None:
    """The characters when all of them are known."""
    if len(text) == 1:
        piece = text[0]
        return piece.text if isinstance(piece, Lit) else None
    out = []
    for piece in text:
        if not isinstance(piece, Lit):
            return None
        out.append(piece.text)
    return "".join(out)


def options(text: Text) -> list[str] | None:
    """Every string the text can be, at most `MOST_ALTERNATIVES`; None when there is a hole or more."""
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
                found = options(option)
                if found is None:
                    return None
                inner.extend(found)
            choices.append(inner)
            count *= len(inner)
            if count > MOST_ALTERNATIVES * 4:
                return None
        else:
            return None
    seen = dict.fromkeys("".join(combination) for combination in itertools.product(*choices))
    return list(seen) if len(seen) <= MOST_ALTERNATIVES else None


def reasons(text: Text) -> str:
    """Why the text is not known, each reason once."""
    found: dict[str, None] = {}
    _collect(text, found, 0)
    return ", and ".join(list(found)[:4]) or f"one of more than {MOST_ALTERNATIVES} values"


def _collect(text: Text, found: dict[str, None], depth: int) -> None:
    for piece in text:
        if isinstance(piece, Hole):
            found[piece.why] = None
        elif isinstance(piece, Alt) and depth < 8:
            for option in piece.options:
                _collect(option, found, depth + 1)


def value_of(text: Text) -> Value:
    """The text as a value."""
    single = known(text)
    if single is not None:
        return Known(single)
    found = options(text)
    if found is None:
        return Unresolved(reasons(text))
    return Known(found[0]) if len(found) == 1 else OneOf(tuple(found))


def spelling_of(text: Text) -> str:
    """The text as the user spelled it, without the quotes."""
    return text[0].spelling if len(text) == 1 else "".join([piece.spelling for piece in text])


def literal(value: str, place: Place, spelled: str | None = None) -> Text:
    """A text computed rather than written: it points at the place that computed it."""
    return (Lit(value, place, False, spelled),) if value or spelled is not None else ()


def hole(why: str, place: Place, spelling: str, *, many: bool = False) -> Text:
    """A text nobody knows."""
    return (Hole(why[:300], place, spelling[:300], many),)


def computed(values: Sequence[str], place: Place, spelling: str) -> Text:
    """One of `values`, computed at `place`."""
    unique = list(dict.fromkeys(values))
    if len(unique) == 1:
        return literal(unique[0], place, spelling)
    if len(unique) > MOST_ALTERNATIVES or not unique:
        return hole(f"one of more than {MOST_ALTERNATIVES} values", place, spelling)
    return (Alt(tuple(literal(value, place) for value in unique), place, spelling),)


def mapped(text: Text, function: Callable[[str], str], place: Place, spelling: str) -> Text:
    """`function` applied to every alternative; a hole keeps its reason."""
    found = options(text)
    if found is None:
        many = any(isinstance(piece, Hole) and piece.many for piece in text)
        return hole(reasons(text), place, spelling, many=many)
    return computed([function(item) for item in found], place, spelling)


def is_empty(text: Text) -> bool | None:
    """Whether the text is empty: None when that depends on what is not known."""
    for piece in text:
        if isinstance(piece, Lit) and piece.text:
            return False
    found = options(text)
    if found is None:
        return None
    empties = {not item for item in found}
    return empties.pop() if len(empties) == 1 else None


def bounded(text: Text, place: Place, spelling: str) -> Text:
    """The text, or a hole when it has grown beyond what is worth following."""
    if len(text) > MOST_PIECES or sum(len(piece.text) for piece in text if isinstance(piece, Lit)) > LONGEST_VALUE:
        return hole("the value is too long to follow", place, spelling, many=True)
    return text


def at_site(text: Text, place: Place, spelling: str) -> Text:
    """The text of a variable as used at `place`.

    A value that is one plain word is spoken of where it is used (`--tp $TP`); one that holds flags or several
    words is spoken of where those were written.
    """
    first = True
    for piece in text:
        if isinstance(piece, Lit):
            if _BLANK.search(piece.text) or (first and piece.text.startswith("-")):
                return text
            first = first and not piece.text
        elif isinstance(piece, Alt):
            first = False
            if any(_BLANK.search(option) or option.startswith("-") for option in options((piece,)) or ()):
                return text
        else:
            first = False
    moved: list[Piece] = []
    shown = spelling
    for piece in text:
        if isinstance(piece, Lit):
            moved.append(Lit(piece.text, place, False, shown))
        elif isinstance(piece, Hole):
            moved.append(Hole(piece.why, place, shown, piece.many))
        else:
            moved.append(Alt(piece.options, place, shown))
        shown = ""
    return tuple(moved)


def split_fields(parts: Iterable[Part], node: Place, separators: str = " \t\n") -> list[Field]:
    """The words that the parts of one written word come to; `separators` is the shell's IFS."""
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
            found = options((piece,))
            if found is not None and all(item and not _BLANK.search(item) for item in found):
                started = True
                current.append(piece)
                continue
            # What a branch appends (`ARGS="$ARGS --fp16"`) begins with a blank: it is no part of the word before.
            if _blank_at(piece, first=True):
                finish()
            started = many = True
            current.append(_blurred(piece, found))
            if _blank_at(piece, first=False):
                finish()
    finish()
    return fields


def _word_between(separators: str) -> re.Pattern[str]:
    return re.compile(f"[^{re.escape(separators)}]+") if separators else re.compile(".+", re.DOTALL)


def _blank_at(piece: Alt, *, first: bool) -> bool:
    """Whether every alternative that is there begins (ends) with a blank."""
    for option in piece.options:
        if option:
            edge = option[0] if first else option[-1]
            if not isinstance(edge, Lit) or not _BLANK.match(edge.text[:1] if first else edge.text[-1:]):
                return False
    return True


def _blurred(piece: Alt, found: list[str] | None) -> Hole:
    """An alternative that is a different number of words in each branch."""
    if found is None:
        return Hole(reasons((piece,)), piece.place, piece.spelling, True)
    shown = " or ".join(repr(item) if item else "nothing" for item in found[:3])
    return Hole(f"{shown}, depending on a branch"[:300], piece.place, piece.spelling, True)


def _field_place(text: Text, node: Place) -> Place:
    """Where a word stands: at the written word it is part of, or where an expansion's text was written."""
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


def after(text: Text, skipped: int) -> Text:
    """The text without its first characters; a hole is cut whole."""
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
    """How many items all rows begin with, and how many of the others they all end with."""
    first, shortest = rows[0], min(len(row) for row in rows)
    head = 0
    while head < shortest and all(row[head] == first[head] for row in rows):
        head += 1
    tail = 0
    while tail < shortest - head and all(row[-1 - tail] == first[-1 - tail] for row in rows):
        tail += 1
    return head, tail


def join_texts(texts: Sequence[Text], place: Place, spelling: str) -> Text:
    """What a variable holds after branches meet: the common start and end stay, the rest becomes alternatives."""
    first = texts[0]
    if all(text == first for text in texts[1:]):
        return first
    head, tail = common_ends(texts)
    middles = list(dict.fromkeys(text[head : len(text) - tail] for text in texts))
    flat: list[Text] = []
    for middle in middles:
        if len(middle) == 1 and isinstance(middle[0], Alt):
            flat.extend(middle[0].options)
        else:
            flat.append(middle)
    unique = _distinct(flat)
    if len(unique) == 1:
        merged: Text = unique[0]
    elif len(unique) > MOST_ALTERNATIVES:
        merged = hole(f"one of more than {MOST_ALTERNATIVES} values", place, spelling, many=True)
    elif head == tail == 0 and all(len(item) == 1 and isinstance(item[0], Hole) for item in unique):
        why = ", or ".join(dict.fromkeys(reasons(item) for item in unique))
        merged = hole(why, place, spelling, many=any(isinstance(p, Hole) and p.many for i in unique for p in i))
    else:
        merged = (Alt(tuple(unique), place, spelling),)
    return first[:head] + merged + (first[len(first) - tail :] if tail else ())


def _distinct(texts: Sequence[Text]) -> list[Text]:
    """The texts that differ in what they say, not only in where they say it."""
    seen: dict[object, Text] = {}
    for text in texts:
        single = known(text)
        seen.setdefault(text if single is None else single, text)
    return list(seen.values())


def is_count(word: str) -> bool:
    """Whether the word is a whole number that can be counted with; `isdigit` also takes what `int` refuses."""
    return 0 < len(word) <= 9 and word.isascii() and word.isdigit()


def strings(fields: Sequence[Field]) -> list[str] | None:
    """The words as plain strings when every one is known."""
    out: list[str] = []
    for item in fields:
        text = item.known
        if text is None:
            return None
        out.append(text)
    return out
