"""Turns a written word into the words it comes to: quotes, concatenation, expansions, splitting."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from preflight.lazy.patterns import lazy_pattern
from preflight.sources.shell import arithmetic, parameters, substitution
from preflight.sources.shell.document import Document, Hole, Lit, Piece, Place, Text
from preflight.sources.shell.machine import DEEPEST_EXPANSION, Machine
from preflight.sources.shell.state import State
from preflight.sources.shell.text import Field, Part, bounded, hole, known, literal, split_fields

if TYPE_CHECKING:
    from tree_sitter import Node

EXPANSIONS = frozenset(
    ("simple_expansion", "expansion", "command_substitution", "arithmetic_expansion", "process_substitution")
)
_NESTED = EXPANSIONS | {"string", "raw_string", "ansi_c_string", "translated_string", "concatenation"}
_RANGE = lazy_pattern(r"\{(-?\d{1,9})\.\.(-?\d{1,9})(?:\.\.(-?\d{1,9}))?\}")
_LIST = lazy_pattern(r"\{([^{}\s]*,[^{}\s]*)\}")
_ANSI = lazy_pattern(r"\\(n|t|r|a|b|e|E|f|v|\\|'|\"|\?|x[0-9A-Fa-f]{1,2}|[0-7]{1,3})", re.DOTALL)
_ANSI_NAMES = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "a": "\a",
    "b": "\b",
    "e": "\x1b",
    "E": "\x1b",
    "f": "\f",
    "v": "\v",
}
_ONE_VALUE = lazy_pattern(r"comes from outside|from outside, (default|else) \S+$|^the output of|^word \d+ of|is one of")
_LIST_NAME = lazy_pattern(r"ARG|OPT|FLAG|EXTRA|CMD|PARAM|CONFIG\b|LAUNCH|[@*]", re.IGNORECASE)
#: Characters that a backslash makes literal inside double quotes and here-documents.
_IN_QUOTES = '$`"\\\n'
_IN_HEREDOC = "$`\\\n"
MOST_BRACES = 256


def fields(
    machine: Machine, state: State, document: Document, nodes: Iterable[Node], *, starts: list[int] | None = None
) -> list[Field]:
    """The words that a list of written words comes to; `starts` is told which of them is the first of each."""
    found: list[Field] = []
    separators = state.separators()
    for node in nodes:
        machine.step()
        if starts is not None:
            starts.append(len(found))
        if (plain := document.plain_word(node.start_byte, node.end_byte)) is not None:
            found.append(Field((plain,), plain.place))
            continue
        place = document.at(node)
        words = split_fields(word_parts(machine, state, document, node), place, separators)
        machine.step(len(words) // 8)
        if node.type not in ("string", "raw_string") and "{" in document.of(node):
            words = [each for word in words for each in _braces(word)]
        for each in words:
            found.append(_single(each) if each.many and found and _is_option(found[-1]) else each)
    return found


def _is_option(word: Field) -> bool:
    plain = word.known
    return plain is not None and plain.startswith("-") and "=" not in plain and len(plain) > 1


def _single(word: Field) -> Field:
    """An unquoted variable from outside right behind an option (`--nnodes $NNODES`) is the option's value.

    It could be empty or several words in theory; whoever writes `--nnodes $NNODES` means one. Names that speak of
    arguments (`--standalone $ARGS`) stay what they are.
    """
    piece = word.text[0]
    if isinstance(piece, Hole) and _ONE_VALUE.search(piece.why) and not _LIST_NAME.search(piece.spelling):
        return Field(word.text, word.place)
    return word


def text(machine: Machine, state: State, document: Document, node: Node) -> Text:
    """What a written word comes to where the shell does not split it: assignments, tests, quoted strings."""
    if (plain := document.plain_word(node.start_byte, node.end_byte)) is not None:
        return (plain,)
    pieces: list[Piece] = []
    for part in word_parts(machine, state, document, node):
        if part.split_before and pieces:
            pieces.append(Lit(" ", document.at(node), False))
        if part.piece is not None:
            pieces.append(part.piece)
    machine.step(len(pieces) // 8 + sum(len(piece.text) for piece in pieces if isinstance(piece, Lit)) // 2000)
    return bounded(tuple(pieces), document.at(node), document.of(node)[:80])


def word_parts(machine: Machine, state: State, document: Document, node: Node, *, quoted: bool = False) -> list[Part]:
    """The parts of one written word."""
    kind = node.type
    start, end = node.start_byte, node.end_byte
    if kind == "string" or kind == "translated_string":
        return _string(machine, state, document, node)
    if kind == "raw_string":
        begin = document.text.find("'", start, end) + 1
        stop = end - 1 if end - 1 >= begin and document.text[end - 1] == "'" else end
        return _quoted(document.slice(begin, stop))
    if kind == "ansi_c_string":
        body = document.text[start:end].strip()
        return _quoted(literal(_ANSI.sub(_ansi, body[2:-1]), document.at(node), body[2:-1]))
    if kind in EXPANSIONS:
        return expansion_parts(machine, state, document, node, quoted=quoted)
    if node.child_count:
        return between(machine, state, document, node.children, start, end, quoted=quoted)
    return _literal(document, start, end, quoted=quoted)


def between(
    machine: Machine,
    state: State,
    document: Document,
    children: Iterable[Node],
    start: int,
    end: int,
    *,
    quoted: bool = False,
    escapes: str | None = None,
) -> list[Part]:
    """The parts of `text[start:end]`: the nested nodes among `children`, and what stands between them.

    The grammar leaves out blanks between two expansions in a string and lets an expansion begin with them, so
    whatever no nested node accounts for is taken as written.
    """
    parts: list[Part] = []
    at = start
    for child in _nested(children):
        if child.end_byte <= at or child.start_byte >= end:
            continue
        begin = document.start_of(child)
        parts += _literal(document, at, max(at, begin), quoted=quoted, escapes=escapes)
        parts += word_parts(machine, state, document, child, quoted=quoted)
        at = child.end_byte
    parts += _literal(document, at, end, quoted=quoted, escapes=escapes)
    return parts


def _nested(nodes: Iterable[Node]) -> Iterator[Node]:
    """The outermost expansions and quotes among and below `nodes`, in order."""
    waiting = list(nodes)[::-1]
    while waiting:
        node = waiting.pop()
        if node.type in _NESTED:
            yield node
        elif node.child_count:
            waiting.extend(reversed(node.children))


def _string(machine: Machine, state: State, document: Document, node: Node) -> list[Part]:
    begin = document.text.find('"', node.start_byte, node.end_byte) + 1
    end = node.end_byte
    if end - 1 >= begin and document.text[end - 1] == '"':
        end -= 1
    inner: list[Node] = []
    for child in node.children:
        inner.extend(child.children if child.type == "string" else (child,))
    parts = between(machine, state, document, inner, begin, end, quoted=True, escapes=_IN_QUOTES)
    if not parts and begin < end and re.fullmatch(r"\$(@|\{[^}]*[@][^}]*\})", document.text[begin:end]):
        # "$@" and "${A[@]}" with nothing in them are no word at all.
        return []
    return parts or [Part(None)]


def heredoc_text(machine: Machine, state: State, document: Document, body: Node, *, raw: bool) -> Text:
    """The text of a here-document; `raw` when its delimiter is quoted."""
    if raw:
        return document.slice(body.start_byte, body.end_byte)
    parts = between(
        machine,
        state,
        document,
        body.children,
        body.start_byte,
        body.end_byte,
        quoted=True,
        escapes=_IN_HEREDOC,
    )
    return tuple(part.piece for part in parts if part.piece is not None)


def expansion_parts(machine: Machine, state: State, document: Document, node: Node, *, quoted: bool) -> list[Part]:
    """The parts an expansion of any kind comes to."""
    machine.step()
    start = document.start_of(node)
    place = document.place(start, node.end_byte)
    spelling = document.text[start : node.end_byte]
    if machine.expansion_depth >= DEEPEST_EXPANSION:
        return as_parts(hole("it is nested too deeply to follow", place, spelling), quoted=quoted)
    machine.expansion_depth += 1
    try:
        if node.type in ("simple_expansion", "expansion"):
            return parameters.expand(machine, state, document, node, quoted=quoted)
        if node.type == "arithmetic_expansion":
            return as_parts(arithmetic.expansion(machine, state, document, node), quoted=quoted)
        if node.type == "command_substitution":
            return as_parts(substitution.output(machine, state, document, node), quoted=quoted)
        return as_parts(hole("the output of a process substitution", place, spelling), quoted=quoted)
    finally:
        machine.expansion_depth -= 1


def as_parts(result: Text, *, quoted: bool) -> list[Part]:
    """An expansion's result as parts of the word around it."""
    if quoted:
        return [Part(piece) for piece in result] or [Part(None)]
    return [Part(piece, split=True) for piece in result]


def _quoted(pieces: Text) -> list[Part]:
    return [Part(piece) for piece in pieces] or [Part(None)]


def _literal(document: Document, start: int, end: int, *, quoted: bool, escapes: str | None = None) -> list[Part]:
    """Text as written, without its backslashes. Gaps stay what they are."""
    if start >= end:
        return []
    source = document.text
    if source.find("\\", start, end) < 0:
        return [_written(piece, quoted=quoted) for piece in document.slice(start, end)]
    parts: list[Part] = []
    at = start
    index = source.find("\\", start, end)
    while 0 <= index < end - 1:
        after = source[index + 1]
        if escapes is not None and after not in escapes:
            index = source.find("\\", index + 1, end)
            continue
        parts += [_written(piece, quoted=quoted) for piece in document.slice(at, index)]
        at = index + 2 if after == "\n" else index + 1
        index = source.find("\\", index + 2, end)
    parts += [_written(piece, quoted=quoted) for piece in document.slice(at, end)]
    return parts


def _written(piece: Piece, *, quoted: bool) -> Part:
    """A piece of written text: known characters are never split, an unknown part of an inner script may be."""
    return Part(piece, split=not quoted and not isinstance(piece, Lit))


def _ansi(match: re.Match[str]) -> str:
    code = match.group(1)
    if code in _ANSI_NAMES:
        return _ANSI_NAMES[code]
    if code[0] == "x":
        return chr(int(code[1:], 16))
    return chr(int(code, 8) & 0xFF) if code[0] in "01234567" else code


def _braces(word: Field) -> list[Field]:
    """`{0..3}` and `{a,b}` in a word without expansions."""
    plain = word.known
    if plain is None or "{" not in plain or not any(isinstance(p, Lit) and p.exact for p in word.text):
        return [word]
    done: list[str] = []
    waiting = [plain]
    while waiting and len(done) + len(waiting) <= MOST_BRACES:
        current = waiting.pop(0)
        choices: list[str] | None = None
        found = _RANGE.search(current)
        if found is not None:
            first, last = int(found.group(1)), int(found.group(2))
            step = abs(int(found.group(3) or 1)) or 1
            if abs(last - first) // step < MOST_BRACES:
                turns = range(first, last + 1, step) if last >= first else range(first, last - 1, -step)
                width = len(found.group(1)) if found.group(1).startswith("0") else 0
                choices = [str(turn).zfill(width) for turn in turns]
        else:
            found = _LIST.search(current)
            choices = found.group(1).split(",") if found is not None else None
        if found is None or choices is None:
            done.append(current)
        else:
            waiting = [current[: found.start()] + c + current[found.end() :] for c in choices] + waiting
    if waiting or len(done) == 1:
        return [word]
    return [Field(literal(item, word.place), word.place) for item in done]


def plain(machine: Machine, state: State, document: Document, node: Node) -> str | None:
    """The word's text when it is fully known."""
    return known(text(machine, state, document, node))


def unknown(why: str, place: Place, spelling: str, *, quoted: bool, many: bool = True) -> list[Part]:
    """Parts for something nobody knows."""
    return as_parts((Hole(why[:300], place, spelling, many),), quoted=quoted)
