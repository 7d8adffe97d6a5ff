"""Expands written words.

Quotes, `$NAME` and `${...}`, `$(( ))`, `$( )`, braces and word splitting, over known and unknown text. Nothing is
executed. Words, parameters, arrays and command substitutions expand each other, so they share this module. A command
substitution may hold statements: it runs them through `Machine.run_statement`, because `statements` imports this
module.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from preflight.model.job.value import ALLOCATED_HOSTS, Symbol
from preflight.sources.base import FROM_CALLER, UnknownKind, UnknownOrigin, assume_not_set
from preflight.sources.shell import arithmetic, lookup, parameter_syntax, program_output
from preflight.sources.shell.abstract_machine import MAX_DEPTH, MAX_EXPANSION_DEPTH, Machine
from preflight.sources.shell.lookup import allocated_nodes, look_up
from preflight.sources.shell.parameter_syntax import Use, parse_parameter
from preflight.sources.shell.shell_document import Alt, Document, Hole, Lit, Piece, Place, Text
from preflight.sources.shell.state import Kind, Positional, Slot, State, element_of
from preflight.sources.shell.words import (
    Field,
    Part,
    hole,
    is_empty,
    is_start_directory,
    join_texts,
    join_words,
    joined,
    known,
    known_strings,
    limit_size,
    literal,
    map_text,
    possible_texts,
    reasons,
    relocate,
    spelling_of,
    split_fields,
)

if TYPE_CHECKING:
    from tree_sitter import Node

EXPANSIONS = frozenset(
    ("simple_expansion", "expansion", "command_substitution", "arithmetic_expansion", "process_substitution")
)
_NESTED = EXPANSIONS | {"string", "raw_string", "ansi_c_string", "translated_string", "concatenation"}
_RANGE = re.compile(r"\{(-?\d{1,9})\.\.(-?\d{1,9})(?:\.\.(-?\d{1,9}))?\}")
_LIST = re.compile(r"\{([^{}\s]*,[^{}\s]*)\}")
_ANSI = re.compile(r"\\(n|t|r|a|b|e|E|f|v|\\|'|\"|\?|x[0-9A-Fa-f]{1,2}|[0-7]{1,3})", re.DOTALL)
_ANSI_NAMES = dict(zip("ntrabeEfv", "\n\t\r\a\b\x1b\x1b\f\v", strict=True))
_LIST_NAME = re.compile(r"ARG|OPT|FLAG|EXTRA|CMD|PARAM|CONFIG\b|LAUNCH|[@*]", re.IGNORECASE)
#: Characters that a backslash makes literal in double quotes and in here-documents.
_IN_QUOTES = '$`"\\\n'
_IN_HEREDOC = "$`\\\n"
MAX_BRACE_WORDS = 256


def expand_words(
    machine: Machine, state: State, document: Document, nodes: Iterable[Node], *, starts: list[int] | None = None
) -> list[Field]:
    """Expand a list of written words; `starts`, if given, receives the index of the first field of each."""
    found: list[Field] = []
    separators = state.separators()
    for node in nodes:
        machine.step()
        if starts is not None:
            starts.append(len(found))
        if (plain := document.plain_word(node.start_byte, node.end_byte)) is not None:
            found.append(Field((plain,), plain.place))
            continue
        place = document.place_of(node)
        words = split_fields(word_parts(machine, state, document, node), place, separators)
        machine.step(len(words) // 8)
        if node.type not in ("string", "raw_string") and "{" in document.text_of(node):
            words = [expanded for word in words for expanded in _expand_braces(word)]
        for word in words:
            found.append(_as_one_word(word) if word.many and found and _is_option(found[-1]) else word)
    return found


def _is_option(word: Field) -> bool:
    plain = word.known
    return plain is not None and plain.startswith("-") and "=" not in plain and len(plain) > 1


def _as_one_word(word: Field) -> Field:
    """Treat an unquoted external variable right after an option (`--nnodes $NNODES`) as one word, the option's value.

    In theory it may be empty or several words, but `--nnodes $NNODES` is intended to be one. Names that suggest
    arguments (`--standalone $ARGS`) may still be any number of words.
    """
    piece = word.text[0]
    if isinstance(piece, Hole) and _is_likely_one_word(piece.origin) and not _LIST_NAME.search(piece.spelling):
        return Field(word.text, word.place)
    return word


def _is_likely_one_word(origin: UnknownOrigin | None) -> bool:
    if origin is None:
        return False
    if origin.kind is UnknownKind.CALLER:
        return origin.default is None or not re.search(r"\s", origin.default)
    return origin.kind is UnknownKind.COMMAND_OUTPUT


def expand_text(machine: Machine, state: State, document: Document, node: Node) -> Text:
    """Expand a written word where the shell does not split it: assignments, tests, quoted strings."""
    if (plain := document.plain_word(node.start_byte, node.end_byte)) is not None:
        return (plain,)
    pieces: list[Piece] = []
    for part in word_parts(machine, state, document, node):
        if part.split_before and pieces:
            pieces.append(Lit(" ", document.place_of(node), False))
        if part.piece is not None:
            pieces.append(part.piece)
    machine.step(len(pieces) // 8 + sum(len(piece.text) for piece in pieces if isinstance(piece, Lit)) // 2000)
    return limit_size(tuple(pieces), document.place_of(node), document.text_of(node)[:80])


def word_parts(machine: Machine, state: State, document: Document, node: Node, *, quoted: bool = False) -> list[Part]:
    """Return the parts of one written word."""
    kind = node.type
    start, end = node.start_byte, node.end_byte
    if kind == "string" or kind == "translated_string":
        return _string_parts(machine, state, document, node)
    if kind == "raw_string":
        begin = document.text.find("'", start, end) + 1
        stop = end - 1 if end - 1 >= begin and document.text[end - 1] == "'" else end
        return _quoted_parts(document.slice(begin, stop))
    if kind == "ansi_c_string":
        body = document.text[start:end].strip()
        return _quoted_parts(literal(_ANSI.sub(_ansi_character, body[2:-1]), document.place_of(node), body[2:-1]))
    if kind in EXPANSIONS:
        return _expansion_parts(machine, state, document, node, quoted=quoted)
    if node.child_count:
        return parts_between(machine, state, document, node.children, start, end, quoted=quoted)
    return _literal_parts(document, start, end, quoted=quoted)


def parts_between(
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
    """Return the parts of `text[start:end]`: the expansions and quotes among `children`, and the text between them.

    The grammar omits blanks between two expansions in a string and includes leading blanks in an expansion, so all text
    outside a nested node is taken as written.
    """
    parts: list[Part] = []
    at = start
    for child in _nested_nodes(children):
        if child.end_byte <= at or child.start_byte >= end:
            continue
        begin = document.start_of(child)
        parts += _literal_parts(document, at, max(at, begin), quoted=quoted, escapes=escapes)
        parts += word_parts(machine, state, document, child, quoted=quoted)
        at = child.end_byte
    parts += _literal_parts(document, at, end, quoted=quoted, escapes=escapes)
    return parts


def _nested_nodes(nodes: Iterable[Node]) -> Iterator[Node]:
    """Yield the outermost expansions and quotes among and below `nodes`, in order."""
    waiting = list(nodes)[::-1]
    while waiting:
        node = waiting.pop()
        if node.type in _NESTED:
            yield node
        elif node.child_count:
            waiting.extend(reversed(node.children))


def _string_parts(machine: Machine, state: State, document: Document, node: Node) -> list[Part]:
    begin = document.text.find('"', node.start_byte, node.end_byte) + 1
    end = node.end_byte
    if end - 1 >= begin and document.text[end - 1] == '"':
        end -= 1
    inner: list[Node] = []
    for child in node.children:
        inner.extend(child.children if child.type == "string" else (child,))
    parts = parts_between(machine, state, document, inner, begin, end, quoted=True, escapes=_IN_QUOTES)
    if not parts and begin < end and re.fullmatch(r"\$(@|\{[^}]*[@][^}]*\})", document.text[begin:end]):
        # An empty "$@" or "${A[@]}" expands to no word.
        return []
    return parts or [Part(None)]


def heredoc_text_of(machine: Machine, state: State, document: Document, redirect: Node) -> tuple[Text, Node] | None:
    """Return the text of a here-document, as written if its delimiter is quoted, and the node of its body."""
    body = next((child for child in redirect.children if child.type == "heredoc_body"), None)
    start = next((child for child in redirect.children if child.type == "heredoc_start"), None)
    if body is None or start is None:
        return None
    begin, end = body.start_byte, body.end_byte
    if any(character in document.text_of(start) for character in "'\"\\"):
        return document.slice(begin, end), body
    inner = body.children
    return joined(parts_between(machine, state, document, inner, begin, end, quoted=True, escapes=_IN_HEREDOC)), body


def output_text(machine: Machine, state: State, document: Document, nodes: Sequence[Node]) -> Text | None:
    """Return the text that statements print before a pipe; None when it is unknown. The statements are not recorded."""
    reader = _OutputReader(machine, document, document.place_of(nodes[0]), document.text_of(nodes[0]).strip())
    return reader.pipeline_output(state.copy(), nodes)


def redirected_text(machine: Machine, state: State, document: Document, redirect: Node) -> Text | None:
    """Return the text that a command reads from `< file` or `< <(command)`; None when it is unknown.

    The text of a file keeps its location in that file.
    """
    destination = redirect.child_by_field_name("destination")
    if destination is None:
        return None
    if destination.type == "process_substitution":
        inner = [child for child in destination.named_children if child.type != "comment"]
        return output_text(machine, state, document, inner) if len(inner) == 1 else None
    path = expand_known(machine, state, document, destination)
    return None if path is None else lookup.file_text(machine, state, path, document.place_of(destination))


def _expansion_parts(machine: Machine, state: State, document: Document, node: Node, *, quoted: bool) -> list[Part]:
    """Return the parts that any kind of expansion results in."""
    machine.step()
    start = document.start_of(node)
    place = document.place(start, node.end_byte)
    spelling = document.text[start : node.end_byte]
    if machine.expansion_depth >= MAX_EXPANSION_DEPTH:
        return _to_parts(hole("an expansion nested too deeply to follow", place, spelling), quoted=quoted)
    machine.expansion_depth += 1
    try:
        if node.type in ("simple_expansion", "expansion"):
            return _parameter_parts(machine, state, document, node, quoted=quoted)
        if node.type == "arithmetic_expansion" or _is_arithmetic(spelling):
            return _to_parts(_arithmetic_text(machine, state, document, node), quoted=quoted)
        if node.type == "command_substitution":
            return _to_parts(_command_output(machine, state, document, node), quoted=quoted)
        return _to_parts(hole("the output of a process substitution", place, spelling), quoted=quoted)
    finally:
        machine.expansion_depth -= 1


def _is_arithmetic(spelling: str) -> bool:
    """Return whether `$((...))` is arithmetic where the grammar parses it as a subshell, as it does inside
    `${N:=...}`.
    """
    if not (spelling.startswith("$((") and spelling.endswith("))")):
        return False
    depth = 0
    for character in spelling[3:-2]:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth < 0:
            return False
    return depth == 0 and ";" not in spelling and "\n" not in spelling


def _to_parts(result: Text, *, quoted: bool) -> list[Part]:
    """Convert the result of an expansion to parts of the word around it."""
    if quoted:
        return [Part(piece) for piece in result] or [Part(None)]
    return [Part(piece, split=True) for piece in result]


def _quoted_parts(pieces: Text) -> list[Part]:
    return [Part(piece) for piece in pieces] or [Part(None)]


def _literal_parts(document: Document, start: int, end: int, *, quoted: bool, escapes: str | None = None) -> list[Part]:
    """Return the parts of text as written, without its backslashes; unknown pieces stay as they are."""
    if start >= end:
        return []
    source = document.text
    process_id = source.find("$$", start, end)
    if process_id >= 0 and source[process_id - 1 : process_id] != "\\":
        # The grammar leaves `$$` in the middle of a word to the text around it.
        stop = process_id + 2
        value = hole(Symbol.PROCESS_ID.value, document.place(process_id, stop), "$$")
        before_parts = _literal_parts(document, start, process_id, quoted=quoted, escapes=escapes)
        after_parts = _literal_parts(document, stop, end, quoted=quoted, escapes=escapes)
        return [*before_parts, *_to_parts(value, quoted=quoted), *after_parts]
    if source.find("\\", start, end) < 0:
        return [_written_part(piece, quoted=quoted) for piece in document.slice(start, end)]
    parts: list[Part] = []
    at = start
    index = source.find("\\", start, end)
    while 0 <= index < end - 1:
        after = source[index + 1]
        if escapes is not None and after not in escapes:
            index = source.find("\\", index + 1, end)
            continue
        parts += [_written_part(piece, quoted=quoted) for piece in document.slice(at, index)]
        at = index + 2 if after == "\n" else index + 1
        index = source.find("\\", index + 2, end)
    parts += [_written_part(piece, quoted=quoted) for piece in document.slice(at, end)]
    return parts


def _written_part(piece: Piece, *, quoted: bool) -> Part:
    """Convert written text to a part: known characters are never split, an unknown piece of an inner script may be."""
    return Part(piece, split=not quoted and not isinstance(piece, Lit))


def _ansi_character(match: re.Match[str]) -> str:
    code = match.group(1)
    if code in _ANSI_NAMES:
        return _ANSI_NAMES[code]
    if code[0] == "x":
        return chr(int(code[1:], 16))
    return chr(int(code, 8) & 0xFF) if code[0] in "01234567" else code


def _expand_braces(word: Field) -> list[Field]:
    """Expand `{0..3}` and `{a,b}` in a word without expansions."""
    plain = word.known
    if plain is None or "{" not in plain or not any(isinstance(p, Lit) and p.exact for p in word.text):
        return [word]
    done: list[str] = []
    waiting = [plain]
    while waiting and len(done) + len(waiting) <= MAX_BRACE_WORDS:
        current = waiting.pop(0)
        choices: list[str] | None = None
        found = _RANGE.search(current)
        if found is not None:
            first, last = int(found.group(1)), int(found.group(2))
            step = abs(int(found.group(3) or 1)) or 1
            if abs(last - first) // step < MAX_BRACE_WORDS:
                numbers = range(first, last + 1, step) if last >= first else range(first, last - 1, -step)
                width = len(found.group(1)) if found.group(1).startswith("0") else 0
                choices = [str(number).zfill(width) for number in numbers]
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


def expand_known(machine: Machine, state: State, document: Document, node: Node) -> str | None:
    """Expand a word and return its text when it is fully known."""
    return known(expand_text(machine, state, document, node))


def _unknown_parts(why: str, place: Place, spelling: str, *, quoted: bool) -> list[Part]:
    return _to_parts((Hole(why[:300], place, spelling, True),), quoted=quoted)


def _arithmetic_text(machine: Machine, state: State, document: Document, node: Node) -> Text:
    """Return the value of `$(( ... ))`."""
    begin = document.start_of(node)
    place = document.place(begin, node.end_byte)
    raw = document.text[begin : node.end_byte]
    opening = 3 if raw.startswith("$((") else 2
    closing = 2 if opening == 3 else 1
    start, end = begin + opening, node.end_byte - closing
    inner = joined(parts_between(machine, state, document, node.children, start, end, quoted=True))
    return arithmetic.evaluate_text(machine, state, inner, place, raw.strip())


def _parameter_parts(machine: Machine, state: State, document: Document, node: Node, *, quoted: bool) -> list[Part]:
    """Return the parts that `$NAME` or `${...}` expands to."""
    use = parse_parameter(document, node, quoted=quoted)
    if use is None:
        place = document.place_of(node)
        return _unknown_parts(
            "an expansion that is not understood", place, document.text_of(node).strip(), quoted=quoted
        )
    if use.name in ("@", "*") and use.prefix != "#":
        return _argument_parts(machine, state, use)
    if use.index in ("@", "*") or (use.prefix == "!" and use.name.endswith("*")):
        return _array_parts(machine, state, use)
    return _to_parts(_parameter_text(machine, state, use), quoted=quoted)


def _parameter_text(machine: Machine, state: State, use: Use) -> Text:
    if use.prefix == "#" or (use.name == "#" and not use.operator):
        return _length(machine, state, use)
    if use.prefix == "!":
        target = known(look_up(machine, state, use.name, use.place, use.spelling).scalar())
        if target is None or not re.fullmatch(r"\w+", target):
            return hole(f"the variable that ${use.name} names", use.place, use.spelling)
        slot = look_up(machine, state, target, use.place, use.spelling)
        current = slot.scalar()
    else:
        slot = look_up(machine, state, use.name, use.place, use.spelling)
        current = _element_text(machine, state, use, slot) if use.index else slot.scalar()
    if not use.operator:
        return relocate(current, use.place, use.spelling)
    return _apply_operator(machine, state, use, slot, current)


def _element_text(machine: Machine, state: State, use: Use, slot: Slot) -> Text:
    if slot.kind is Kind.MAP:
        key = _map_key(machine, state, use)
        if key is None:
            return hole(f"${use.name}[{use.index}] depends on its key", use.place, use.spelling)
        return dict(slot.pairs).get(key, ())
    position = arithmetic.evaluate_expression(machine, state, use.index, use.place)
    number = known(position)
    items = (
        slot.items if slot.kind is Kind.ARRAY else (Field(slot.scalar(), use.place, _is_from_caller(slot.scalar())),)
    )
    if slot.kind is Kind.UNSET:
        return ()
    if number is None:
        why = f"element [{use.index}] of ${use.name}: {reasons(position)}"
        hosts = bool(items) and all(item.many and reasons(item.text) == ALLOCATED_HOSTS for item in items)
        if hosts and any(symbol.value in why for symbol in (Symbol.NODE_RANK, Symbol.PROCESS_RANK)):
            return hole(Symbol.THIS_HOST.value, use.place, use.spelling)
        return hole(why, use.place, use.spelling)
    at = int(number)
    if at < 0:
        if any(item.many for item in items) or -at > len(items):
            return hole(f"element [{at}] of ${use.name}", use.place, use.spelling)
        return items[at].text
    for item in items:
        if item.many:
            return element_of(item, at)
        if at == 0:
            return item.text
        at -= 1
    return ()


def _is_from_caller(text: Text) -> bool:
    return len(text) == 1 and isinstance(text[0], Hole) and text[0].origin == FROM_CALLER


def _map_key(machine: Machine, state: State, use: Use) -> str | None:
    inner: list[Node] = []
    for child in use.node.children:
        inner.extend(child.children if child.type == "subscript" else (child,))
    start, end = use.index_start, use.index_start + len(use.index)
    return known(joined(parts_between(machine, state, use.document, inner, start, end, quoted=True)))


def _apply_operator(machine: Machine, state: State, use: Use, slot: Slot, current: Text) -> Text:
    operator = use.operator
    if operator.lstrip(":") in ("-", "=", "?", "+"):
        return _apply_default(machine, state, use, slot, current)
    if operator == ":":
        return _substring(machine, state, use, current)
    if operator.startswith("@"):
        return relocate(current, use.place, use.spelling)
    operand = _operand_pattern(machine, state, use)
    if operand is None:
        return hole(f"{use.spelling} depends on its pattern", use.place, use.spelling)
    machine.step(20)
    try:
        return map_text(current, lambda item: parameter_syntax.apply(operator, item, operand), use.place, use.spelling)
    except ValueError as error:
        return hole(f"{use.spelling} is {error}", use.place, use.spelling)


def _apply_default(machine: Machine, state: State, use: Use, slot: Slot, current: Text) -> Text:
    operator = use.operator[-1]
    with_colon = use.operator.startswith(":")
    used = relocate(current, use.place, use.spelling)
    missing = _is_missing(slot, current, with_colon=with_colon)
    if missing is None and operator in "-=+" and _is_from_caller(current):
        shown = spelling_of(_operand_text(machine, state, use)) if operator != "+" else ""
        missing = True if assume_not_set(use.name, shown) else None
    if operator == "+":
        if missing is True:
            return ()
        operand = _operand_text(machine, state, use)
        if missing is False:
            return operand
        shown = spelling_of(operand)
        return hole(f"{shown!r} if ${use.name} is set, else nothing", use.place, use.spelling, many=True)
    if missing is False:
        return used
    if operator == "?":
        if missing is None:
            return used
        origin = UnknownOrigin(UnknownKind.SOMETIMES_CALLER, variable=use.name)
        return hole(f"${use.name} must be set by the caller", use.place, use.spelling, origin=origin)
    default = _operand_text(machine, state, use)
    if missing is True:
        if operator == "=":
            state.put(use.name, Slot(Kind.TEXT, use.place, default))
        return default
    outside = [piece for piece in current if isinstance(piece, Hole)]
    if outside and outside[0].origin == FROM_CALLER:
        shown = spelling_of(default)
        known_default = possible_texts(default)
        single = known_default is not None and all(item and not re.search(r"\s", item) for item in known_default)
        why = f"${use.name}, set by the caller, default {shown or 'nothing'}"
        if known_default is None:
            why += f" ({reasons(default)})"
        origin = UnknownOrigin(UnknownKind.CALLER, shown, variable=outside[0].origin.variable or use.name)
        result = hole(why, use.place, use.spelling, many=not single, origin=origin)
    elif outside:
        result = used
    else:
        result = _default_where_empty(used, default, use)
    if operator == "=":
        state.put(use.name, Slot(Kind.TEXT, use.place, result))
    return result


def _default_where_empty(current: Text, default: Text, use: Use) -> Text:
    """Replace empty alternatives by the default."""
    if len(current) == 1 and isinstance(current[0], Alt):
        options = [option if is_empty(option) is False else default for option in current[0].options]
        return join_texts(options, use.place, use.spelling)
    return join_texts([current, default], use.place, use.spelling)


def _is_missing(slot: Slot, current: Text, *, with_colon: bool) -> bool | None:
    if slot.kind is Kind.UNSET or (slot.kind is Kind.ARRAY and not slot.items):
        return True
    if any(isinstance(piece, Hole) and piece.origin == FROM_CALLER for piece in current):
        return None if len(current) == 1 else False
    if not with_colon:
        return False
    empty = is_empty(current)
    if empty is None and any(isinstance(piece, Hole) for piece in current):
        # A value computed at run time (a host name, a port) is assumed to be non-empty.
        return False if not any(isinstance(p, Hole) and p.many for p in current) else None
    return empty


def _substring(machine: Machine, state: State, use: Use, current: Text) -> Text:
    cut = _slice_bounds(machine, state, use)
    if cut is None:
        return hole(f"a part of ${use.name}", use.place, use.spelling)
    return map_text(current, lambda item: parameter_syntax.substring(item, *cut), use.place, use.spelling)


def _operand_parts(machine: Machine, state: State, use: Use, *, escapes: str | None = None) -> list[Part]:
    """Return the operand of an expansion; `escapes` lists the characters that a backslash makes literal, None for
    all.
    """
    document, inner, start, end = use.document, use.node.children, use.argument, use.end
    return parts_between(machine, state, document, inner, start, end, quoted=use.quoted, escapes=escapes)


def _operand_text(machine: Machine, state: State, use: Use) -> Text:
    """Return the operand of an expansion, not split."""
    return joined(_operand_parts(machine, state, use))


def _operand_pattern(machine: Machine, state: State, use: Use) -> str | None:
    """Return the operand of a pattern operator with its backslashes; None when it is unknown."""
    return known(joined(_operand_parts(machine, state, use, escapes="")))


def _slice_bounds(machine: Machine, state: State, use: Use) -> tuple[int, int | None] | None:
    """Return offset and length of `${A:offset:length}`; None when one of them is unknown."""
    raw = use.document.text[use.argument : use.end]
    offset, _, length = raw.partition(":")
    first = known(arithmetic.evaluate_expression(machine, state, offset or "0", use.place))
    last = known(arithmetic.evaluate_expression(machine, state, length, use.place)) if length else ""
    if first is None or last is None:
        return None
    return int(first), int(last) if last else None


def _argument_parts(machine: Machine, state: State, use: Use) -> list[Part]:
    """Expand `$@` and `$*`: one word per argument, or one hole when the arguments are unknown."""
    fields = state.positional.fields
    if fields is None:
        why = f"the arguments of {state.positional.owner}"
        return [Part(Hole(why, use.place, use.spelling, True), split=True, split_before=use.quoted)]
    if use.operator == ":" and (cut := _slice_bounds(machine, state, use)) is not None:
        # ${@:1} starts at $1; index 0 is the script.
        fields = _slice_items(fields, max(cut[0] - 1, 0), cut[1])
    return _item_parts(state, fields, use, star=use.name == "*")


def _array_parts(machine: Machine, state: State, use: Use) -> list[Part]:
    """Expand `${A[@]}` with any operator applied to each element, or the indices for `${!A[@]}`."""
    if use.prefix == "#":
        return _to_parts(_length(machine, state, use), quoted=use.quoted)
    slot = look_up(machine, state, use.name, use.place, use.spelling)
    items = _array_items(slot, use)
    if use.prefix == "!":
        if slot.kind is Kind.MAP:
            items = tuple(Field(literal(key, use.place), use.place) for key, _ in slot.pairs)
        elif any(item.many for item in items):
            return _unknown_parts(f"the indices of ${use.name}", use.place, use.spelling, quoted=False)
        else:
            items = tuple(Field(literal(str(n), use.place), use.place) for n in range(len(items)))
    operator = use.operator
    if operator.lstrip(":") in ("-", "=", "+", "?") and operator:
        empty = not items
        if (operator[-1] == "+") == empty:
            return [] if operator[-1] == "+" else _item_parts(state, items, use, star=use.index == "*")
        if operator[-1] == "+" or empty:
            return _operand_parts(machine, state, use)
    elif operator == ":" and (cut := _slice_bounds(machine, state, use)) is not None:
        items = _slice_items(items, *cut)
    elif operator and not operator.startswith("@"):
        operand = _operand_pattern(machine, state, use)
        if operand is None:
            return _unknown_parts(f"{use.spelling} depends on its pattern", use.place, use.spelling, quoted=False)
        machine.step(20 * len(items))
        try:
            texts = [
                map_text(i.text, lambda t: parameter_syntax.apply(operator, t, operand), i.place, spelling_of(i.text))
                for i in items
            ]
            items = tuple(Field(text, i.place, i.many) for text, i in zip(texts, items, strict=True))
        except ValueError as error:
            return _unknown_parts(f"{use.spelling} is {error}", use.place, use.spelling, quoted=False)
    return _item_parts(state, items, use, star=use.index == "*")


def _length(machine: Machine, state: State, use: Use) -> Text:
    """Return the number of arguments or elements, or the length of one value."""
    if use.name in ("#", "@", "*"):
        fields = state.positional.fields
        if fields is None or any(item.many for item in fields):
            return hole(f"the number of arguments of {state.positional.owner}", use.place, use.spelling)
        return literal(str(len(fields)), use.place, use.spelling)
    slot = look_up(machine, state, use.name, use.place, use.spelling)
    if use.index not in ("@", "*"):
        return map_text(slot.scalar(), lambda item: str(len(item)), use.place, use.spelling)
    if slot.kind is Kind.MAP:
        return literal(str(len(slot.pairs)), use.place, use.spelling)
    items = slot.items if slot.kind is Kind.ARRAY else ()
    if slot.kind is Kind.UNSET or (slot.kind is Kind.ARRAY and not any(item.many for item in items)):
        return literal(str(len(items)), use.place, use.spelling)
    if len(items) == 1 and reasons(items[0].text) == ALLOCATED_HOSTS:
        return allocated_nodes(machine, use.place, use.spelling)
    return hole(f"the number of elements of ${use.name}", use.place, use.spelling)


def _array_items(slot: Slot, use: Use) -> tuple[Field, ...]:
    if slot.kind is Kind.ARRAY:
        return slot.items
    if slot.kind is Kind.MAP:
        return tuple(Field(value, use.place) for _, value in slot.pairs)
    if slot.kind is Kind.UNSET:
        return ()
    return (Field(slot.text, use.place, len(slot.text) == 1 and isinstance(slot.text[0], Hole) and slot.text[0].many),)


def _slice_items(items: tuple[Field, ...], first: int, length: int | None) -> tuple[Field, ...]:
    if any(item.many for item in items[:-1]) and first:
        return items
    return items[first : None if length is None else max(first + length, 0)]


def _item_parts(state: State, items: Sequence[Field], use: Use, *, star: bool) -> list[Part]:
    if star and use.quoted:
        pieces: list[Part] = []
        # The first separator stands between them: `IFS=,` makes a list with commas.
        between = state.separators()[:1]
        for number, item in enumerate(items):
            if number and between:
                pieces.append(Part(literal(between, use.place, between)[0]))
            pieces.extend(Part(piece) for piece in item.text)
        return pieces or [Part(None)]
    parts: list[Part] = []
    for number, item in enumerate(items):
        split = item.many or not use.quoted
        if not item.text:
            if use.quoted:
                parts.append(Part(None, False, number > 0))
                parts.append(Part(literal("", item.place, "")[0]))
            continue
        for at, piece in enumerate(item.text):
            parts.append(Part(piece, split=split, split_before=at == 0 and number > 0))
    return parts


def _command_output(machine: Machine, state: State, document: Document, node: Node) -> Text:
    """Return the output of a command substitution without trailing newlines.

    It is folded where constants and files determine it, and otherwise described by the command.
    """
    start = document.start_of(node)
    place = document.place(start, node.end_byte)
    spelling = document.text[start : node.end_byte]
    reader = _OutputReader(machine, document, place, spelling)
    if machine.depth >= MAX_DEPTH:
        return hole("an expansion nested too deeply to follow", place, spelling)
    machine.depth += 1
    try:
        found = reader.sequence_output(
            state.copy(), [child for child in node.named_children if child.type != "comment"]
        )
    finally:
        machine.depth -= 1
    if found is None:
        return reader.unknown_output(spelling.strip("$()` \t\n"))
    if possible_texts(found) is not None and any(not isinstance(piece, Lit) for piece in found):
        return map_text(found, lambda item: item.rstrip("\n"), place, spelling)
    return _strip_newlines(found)


def _strip_newlines(text: Text) -> Text:
    pieces = list(text)
    while pieces:
        last = pieces[-1]
        if not isinstance(last, Lit):
            break
        cut = last.text.rstrip("\n")
        if cut == last.text:
            break
        pieces.pop()
        if cut:
            pieces.append(last.cut(0, len(cut)))
            break
    return tuple(pieces)


class _OutputReader:
    """Determines what commands print; its methods return None if the output is unknown."""

    def __init__(self, machine: Machine, document: Document, place: Place, spelling: str) -> None:
        self.machine = machine
        self.document = document
        self.place = place
        self.spelling = spelling

    def unknown_output(self, command: str) -> Text:
        """Return the output of a command that cannot be folded."""
        shown = " ".join(command.split())
        if len(shown) > 80:
            shown = shown[:77] + "..."
        origin = UnknownOrigin(UnknownKind.COMMAND_OUTPUT)
        return hole(f"the output of `{shown}`", self.place, self.spelling, many=True, origin=origin)

    def run_time_value(self, symbol: Symbol) -> Text:
        """Return a recognised run-time value; the hosts of an allocation are several words."""
        return hole(symbol.value, self.place, self.spelling, many=symbol is Symbol.ALLOCATED_HOSTS)

    def computed(self, value: str) -> Text:
        """Return a computed output."""
        return literal(value, self.place, self.spelling)

    def computed_or_none(self, value: str | None) -> Text | None:
        """Return a computed output, or None."""
        return None if value is None else self.computed(value)

    def sequence_output(self, state: State, nodes: Sequence[Node]) -> Text | None:
        """Return the output of statements in sequence."""
        pieces: list[Text] = []
        for node in nodes:
            found = self.statement_output(state, node)
            if found is None:
                return None
            if found:
                if pieces and not (known(pieces[-1]) or "\n").endswith("\n"):
                    pieces.append(literal("\n", self.place, ""))
                pieces.append(found)
        return tuple(piece for text in pieces for piece in text)

    def statement_output(self, state: State, node: Node) -> Text | None:
        """Return the output of one statement."""
        self.machine.step()
        kind = node.type
        if kind == "command":
            return self.command_output(state, node)
        if kind == "pipeline":
            return self.pipeline_output(state, node.named_children)
        if kind == "list":
            return self.list_output(state, node)
        if kind in ("compound_statement", "subshell", "program"):
            return self.sequence_output(state, node.named_children)
        if kind == "redirected_statement":
            return self.redirected_output(state, node)
        if kind == "file_redirect":
            return self.redirected_file(state, node)
        if kind in ("variable_assignment", "declaration_command", "variable_assignments"):
            self.run_for_effect(state, node)
            return ()
        return None

    def run_for_effect(self, state: State, node: Node) -> None:
        """Run a statement for its effect on the shell, without recording commands."""
        self.machine.quiet += 1
        try:
            self.machine.run_statement(self.machine, state, self.document, node)
        finally:
            self.machine.quiet -= 1

    def list_output(self, state: State, node: Node) -> Text | None:
        left, right = node.named_children[0], node.named_children[-1]
        operator = next((child.type for child in node.children if not child.is_named), "")
        first = self.statement_output(state, left)
        if first is None or operator == "||":
            return first
        second = self.statement_output(state, right)
        return None if second is None else first + second

    def redirected_output(self, state: State, node: Node) -> Text | None:
        body = node.child_by_field_name("body")
        source: Text | None = None
        for redirect in node.children_by_field_name("redirect"):
            if redirect.type == "heredoc_redirect":
                found = heredoc_text_of(self.machine, state, self.document, redirect)
                source = found[0] if found is not None else None
            elif redirect.type == "file_redirect" and self.document.text_of(redirect).lstrip().startswith("<"):
                source = self.redirected_file(state, redirect)
            elif redirect.type == "herestring_redirect" and redirect.named_children:
                source = expand_text(self.machine, state, self.document, redirect.named_children[-1])
            elif redirect.type == "file_redirect":
                raw = self.document.text_of(redirect).lstrip()
                if not raw.startswith(("2", "&")) and "/dev/stderr" not in raw:
                    return ()
        if body is None:
            return source
        if source is not None and body.type == "command":
            fields = expand_words(self.machine, state, self.document, _word_nodes(body))
            return self.apply_filter(state, source, fields)
        return self.statement_output(state, body)

    def redirected_file(self, state: State, node: Node) -> Text | None:
        """Return the content of a file that is read by redirection."""
        destination = node.child_by_field_name("destination")
        if destination is None:
            return None
        path = expand_known(self.machine, state, self.document, destination)
        return None if path is None else self.file_content(state, path)

    def file_content(self, state: State, path: str) -> Text | None:
        """Return the content of a file in the tree and record the reference; None if it is unreadable or too long."""
        found = lookup.read_file(self.machine, state, path)
        if found is None:
            return None
        target = lookup.locate(self.machine, state, path)
        if target is not None:
            self.machine.add_reference(target, "data", self.place)
        return self.computed(found.text) if len(found.text) < 100_000 else None

    def pipeline_output(self, state: State, nodes: Sequence[Node]) -> Text | None:
        commands = [node for node in nodes if node.type != "comment"]
        if not commands:
            return None
        current = self.statement_output(state, commands[0])
        if current is None:
            current = self.unknown_output(self.document.text_of(commands[0]))
        for node in commands[1:]:
            body = node
            if node.type == "redirected_statement":
                body = node.child_by_field_name("body") or node
            if body.type != "command":
                return None
            fields = expand_words(self.machine, state, self.document, _word_nodes(body))
            found = self.apply_filter(state, current, fields)
            if found is None:
                return None
            current = found
        return current

    def apply_filter(self, state: State, source: Text, fields: Sequence[Field]) -> Text | None:
        """Return the output of a filter for the given input."""
        words = known_strings(fields)
        if not words:
            return None
        if words == ["cat"] or words[0] == "tee":
            return source
        plain = possible_texts(source)
        if plain is not None:
            if words[0] == "bc":
                return arithmetic.evaluate_text(self.machine, state, _strip_newlines(source), self.place, self.spelling)
            function = program_output.filter_function(words)
            return None if function is None else map_text(source, function, self.place, self.spelling)
        return self.filter_symbol(state, reasons(source), words)

    def filter_symbol(self, state: State, why: str, words: Sequence[str]) -> Text | None:
        """Return the output of a filter for input that is known only at run time."""
        if words[0] == "wc" and why == Symbol.ALLOCATED_HOSTS.value:
            return allocated_nodes(self.machine, self.place, self.spelling)
        if words[0] in ("wc", "grep") and ("nvidia-smi" in why or "/dev/nvidia" in why or "CUDA" in why):
            return self.run_time_value(Symbol.GPU_COUNT)
        result = program_output.symbol_after_filter(why, words)
        if result is None:
            return None
        return hole(result, self.place, self.spelling, many=result == Symbol.ALLOCATED_HOSTS.value)

    def command_output(self, state: State, node: Node) -> Text | None:
        """Return the output of a simple command."""
        fields = expand_words(self.machine, state, self.document, _word_nodes(node))
        if not fields:
            return ()
        name = fields[0].known
        if name is None:
            return None
        arguments = fields[1:]
        function = state.functions.get(name)
        if function is not None:
            return self.function_output(state, name, arguments, *function)
        name = name.rpartition("/")[2]
        if name in ("echo",):
            return self.echo_output(arguments)
        if name in ("cd", "pushd", "export", "set", "module", "source", ".", "true", ":", "shift"):
            self.run_for_effect(state, node)
            return ()
        if name == "pwd":
            if state.directory is None:
                return hole(Symbol.START_DIRECTORY.value, self.place, self.spelling)
            # An absolute path, whose beginning is not known.
            return self.computed(f"./{state.directory}" if state.directory else ".")
        if name in program_output.HOST_PROGRAMS:
            printed = program_output.printed_symbol(name, arguments, batch=state.batch)
            return None if printed is None else self.run_time_value(printed)
        simple = _SIMPLE.get(name)
        if simple is Symbol.TIME and program_output.is_day(arguments):
            return hole("the date of the run", self.place, self.spelling)
        if simple is not None:
            return self.run_time_value(simple)
        if name in program_output.PATH_PROGRAMS:
            return self.path_output(name, arguments)
        if name == "nvidia-smi":
            if any("count" in (item.known or "") for item in arguments):
                return self.run_time_value(Symbol.GPU_COUNT)
            return self.unknown_output("nvidia-smi")
        if name == "expr":
            return self.expr_output(state, arguments)
        if name in _READERS and arguments and reasons(arguments[-1].text) == Symbol.NODE_FILE.value:
            lines = self.run_time_value(Symbol.NODE_FILE_LINES)
            return lines if name == "cat" else self.apply_filter(state, lines, [fields[0], *arguments[:-1]])
        words = known_strings(arguments)
        if words is None:
            return None
        program = lookup.looked_up(name, words)
        if program is not None:
            return lookup.path_text(program, self.place, self.spelling)
        if name == "printf":
            return self.computed_or_none(program_output.printf(words))
        if name == "seq":
            return self.computed_or_none(program_output.seq(words))
        if name == "cat" and words and not any(word.startswith("-") for word in words):
            contents = [self.file_content(state, word) for word in words]
            return tuple(piece for text in contents for piece in text or ()) if None not in contents else None
        if name in ("wc", "head", "tail") and words and not words[-1].startswith("-"):
            file_content = self.file_content(state, words[-1])
            return (
                None if file_content is None else self.apply_filter(state, file_content, [fields[0], *arguments[:-1]])
            )
        return None

    def function_output(
        self, state: State, name: str, arguments: Sequence[Field], document: Document, body: Node
    ) -> Text | None:
        """Return the output of a function of the script."""
        if self.machine.call_stack.count(name) >= 2 or self.machine.depth >= MAX_DEPTH - 2:
            return None
        inside = state.copy()
        inside.positional = Positional(tuple(arguments), name)
        inside.locals.append({})
        self.machine.call_stack.append(name)
        self.machine.depth += 1
        outer, self.document = self.document, document
        try:
            return self.sequence_output(inside, [child for child in body.named_children if child.type != "comment"])
        finally:
            self.document = outer
            self.machine.depth -= 1
            self.machine.call_stack.pop()

    def echo_output(self, arguments: Sequence[Field]) -> Text:
        rest = list(arguments)
        while rest and rest[0].known in ("-n", "-e", "-ne", "-en", "-E"):
            rest.pop(0)
        pieces: list[Text] = []
        for number, item in enumerate(rest):
            if number:
                pieces.append(literal(" ", self.place, " "))
            text = item.text
            if item.many and len(text) == 1 and isinstance(text[0], Hole):
                text = hole(text[0].why, text[0].place, text[0].spelling, many=True, origin=text[0].origin)
            pieces.append(text)
        if not any(item.known in ("-n", "-ne", "-en") for item in arguments[:2]):
            pieces.append(literal("\n", self.place, ""))
        return tuple(piece for text in pieces for piece in text)

    def path_output(self, name: str, arguments: Sequence[Field]) -> Text | None:
        """Return the output of `dirname`, `basename` and similar programs."""
        rest = [item for item in arguments if item.known is None or not item.known.startswith("-")]
        if not rest:
            return None
        if name == "dirname" and is_start_directory(rest[0].text):
            return (*rest[0].text, *literal("/..", self.place, self.spelling))
        suffix = rest[1].known if name == "basename" and len(rest) > 1 else None
        return map_text(rest[0].text, program_output.path_function(name, suffix or ""), self.place, self.spelling)

    def expr_output(self, state: State, arguments: Sequence[Field]) -> Text | None:
        if any(item.known in (":", "substr", "index", "match", "length") for item in arguments):
            return None
        inner = join_words(arguments, self.place)
        return arithmetic.evaluate_text(self.machine, state, inner, self.place, self.spelling)


def _word_nodes(node: Node) -> list[Node]:
    field_of = node.field_name_for_child
    children = enumerate(node.children)
    return [child for index, child in children if child.is_named and field_of(index) in ("name", "argument")]


#: Programs that read the file named last.
_READERS = frozenset(("cat", "head", "tail", "sort", "uniq", "awk", "sed", "cut"))
_SIMPLE = {
    "nproc": Symbol.CORE_COUNT,
    "shuf": Symbol.RANDOM_NUMBER,
    "uuidgen": Symbol.RANDOM_NUMBER,
    "date": Symbol.TIME,
    "whoami": Symbol.USER,
}
