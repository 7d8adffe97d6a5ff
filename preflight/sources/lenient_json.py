"""Reads JSON that is not quite JSON, keeps the place of everything, and says what is wrong with it.

Configuration in the wild has comments, trailing and missing commas, template placeholders, or is cut off. A
reader that stops at the first fault would lose the readable keys, and one that loses the nesting after a
missing comma (as the error recovery of tree-sitter's grammar does) would state them at the wrong depth.
"""

from __future__ import annotations

import re
from dataclasses import field

from preflight.job import Plain
from preflight.lazy.dataclasses import dataclass
from preflight.lazy.patterns import lazy_pattern
from preflight.sources.structured import Document, Fault, Kind, Member, Node

#: Deeper nesting is no configuration; Python's own recursion limit must never be met.
DEEPEST = 60
#: After so many faults a file is no configuration, and the rest of it is not read.
MOST_FAULTS = 200

_SPACE = lazy_pattern(r"[ \t\r\n\f\v\ufeff\xa0]+")
_COMMENT = lazy_pattern(r"//[^\n]*|#[^\n]*|/\*.*?\*/", re.DOTALL)
#: Placeholders are short; an unbounded search for their end would be quadratic in hostile input.
_TEMPLATE = lazy_pattern(
    r"\{\{[^\n]{0,200}?\}\}|\{%[^\n]{0,200}?%\}|\$\{[^}\n]{0,200}\}|<%[^\n]{0,200}?%>|\$\([^)\n]{0,200}\)"
    r"|@[A-Za-z_]\w{0,100}@"
)
_STRING = lazy_pattern(r'"((?:[^"\\\n]|\\.)*)"|\'((?:[^\'\\\n]|\\.)*)\'')
_NUMBER = lazy_pattern(r"-?\d{1,40}(\.\d{1,40})?([eE][+-]?\d{1,4})?", re.ASCII)
#: `BATCH_SIZE`: what template files for sed hold.
_CAPITALS = lazy_pattern(r"[A-Z][A-Z0-9]*(?:_\w+)+|[A-Z][A-Z0-9]{2,}", re.ASCII)
_BARE = lazy_pattern(r"[^\s,:{}\[\]\"']+")
_ESCAPE = lazy_pattern(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_WORDS: dict[str, Plain] = {"true": True, "false": False, "null": None}
_PYTHON_WORDS: dict[str, Plain] = {"True": True, "False": False, "None": None}


def parse(text: str) -> Document:
    """Read `text`; never raises. The root is None when there is nothing in it."""
    reader = _Reader(text)
    reader.skip()
    if reader.position >= len(text):
        return Document(None, (Fault("the file is empty, expected `{`", 0, 0),))
    root = reader.value(0)
    reader.skip()
    if reader.position < len(text):
        reader.fault("this stands behind the end of the JSON value", reader.position, len(text))
    return Document(root, tuple(reader.faults))


@dataclass
class _Reader:
    text: str
    position: int = 0
    faults: list[Fault] = field(default_factory=list)
    _commented: bool = False

    def fault(self, message: str, start: int, end: int, *, hjson: bool = False, template: bool = False) -> None:
        if len(self.faults) < MOST_FAULTS:
            self.faults.append(Fault(message, start, end, hjson, template))

    def at(self, sign: str) -> bool:
        return self.text.startswith(sign, self.position)

    def skip(self) -> None:
        """Go past white space and comments."""
        while self.position < len(self.text):
            if match := _SPACE.match(self.text, self.position):
                self.position = match.end()
            elif self.at("//") or self.at("#") or self.at("/*"):
                match = _COMMENT.match(self.text, self.position)
                end = match.end() if match else len(self.text)
                if match is None:
                    self.fault("this comment is never closed by `*/`", self.position, self.position + 2)
                elif not self._commented:
                    self._commented = True
                    self.fault("JSON has no comments", self.position, end, hjson=True)
                self.position = end
            else:
                return

    def value(self, depth: int) -> Node:
        start = self.position
        if match := _TEMPLATE.match(self.text, start):
            return self._template(match.end())
        if depth > DEEPEST:
            self.fault(f"nested more than {DEEPEST} deep; what follows is not read", start, start + 1)
            self.position = len(self.text)
            return Node(Kind.BROKEN, start, start + 1)
        if self.at("{"):
            return self._object(depth)
        if self.at("["):
            return self._array(depth)
        if self.at('"') or self.at("'"):
            return self._string()
        return self._bare()

    def _template(self, end: int) -> Node:
        """A placeholder, with what is glued to it (`{{ n }}0`)."""
        start = self.position
        while end < len(self.text) and (match := _TEMPLATE.match(self.text, end) or _BARE.match(self.text, end)):
            end = match.end()
        self.position = end
        shown = self.text[start:end]
        self.fault(f"`{shown[:60]}` is a placeholder that something fills in later", start, end, template=True)
        return Node(Kind.TEMPLATE, start, end, shown)

    def _object(self, depth: int) -> Node:
        start = self.position
        self.position += 1
        members: list[Member] = []
        while True:
            if len(self.faults) >= MOST_FAULTS:
                self.position = len(self.text)
            self.skip()
            here = self.position
            if here >= len(self.text):
                self._cut_off("object", "}", start)
                break
            if self.at("}"):
                self.position += 1
                break
            if match := _TEMPLATE.match(self.text, here):
                # Template statements (`{% if %}`) stand between members and need no comma.
                self._template(match.end())
                self.skip()
                if self.at(","):
                    self.position += 1
            elif (member := self._member(depth)) is not None:
                members.append(member)
                self._comma("}", member.node.end)
            elif self.position == here:
                self.fault(f"`{self.text[here]}` is not expected here", here, here + 1)
                self.position += 1
        return Node(Kind.OBJECT, start, self.position, members=tuple(members))

    def _member(self, depth: int) -> Member | None:
        start = self.position
        if self.at('"') or self.at("'"):
            key = str(self._string().value)
        elif match := _BARE.match(self.text, start):
            self.position = match.end()
            key = match.group()
            self.fault(f"the key `{key[:60]}` is not in double quotes", start, self.position, hjson=True)
        else:
            return None
        key_end = self.position
        self.skip()
        if not self.at(":"):
            self.fault(f"expected `:` and a value behind the key `{key[:60]}`", start, key_end)
            return None
        self.position += 1
        self.skip()
        if self.position >= len(self.text) or self.text[self.position] in ",}]:":
            self.fault(f"the key `{key[:60]}` has no value", start, key_end)
            return Member(key, start, key_end, Node(Kind.BROKEN, self.position, self.position))
        return Member(key, start, key_end, self.value(depth + 1))

    def _array(self, depth: int) -> Node:
        start = self.position
        self.position += 1
        items: list[Node] = []
        while True:
            if len(self.faults) >= MOST_FAULTS:
                self.position = len(self.text)
            self.skip()
            here = self.position
            if here >= len(self.text):
                self._cut_off("list", "]", start)
                break
            if self.at("]"):
                self.position += 1
                break
            if self.at("}"):
                self.fault("this list is not closed by `]`", start, start + 1)
                break
            if self.text[here] in ",:":
                self.fault(f"`{self.text[here]}` is not expected here", here, here + 1)
                self.position += 1
                continue
            items.append(self.value(depth + 1))
            self._comma("]", items[-1].end)
        return Node(Kind.ARRAY, start, self.position, items=tuple(items))

    def _comma(self, closing: str, value_end: int) -> None:
        """Behind a value stands a comma, or the end."""
        self.skip()
        here = self.position
        if self.at(","):
            self.position += 1
            self.skip()
            if self.at(closing):
                self.fault(f"a comma before `{closing}`", here, here + 1, hjson=True)
        elif here < len(self.text) and not self.at(closing):
            line_ended = "\n" in self.text[value_end:here]
            self.fault("a comma is missing behind this", max(0, value_end - 1), value_end, hjson=line_ended)

    def _cut_off(self, what: str, closing: str, start: int) -> None:
        line = self.text.count("\n", 0, start) + 1
        end = len(self.text)
        message = f"the file ends inside the {what} that begins on line {line}: `{closing}` is missing"
        self.fault(message, len(self.text.rstrip()), end)

    def _string(self) -> Node:
        start = self.position
        match = _STRING.match(self.text, start)
        if match is None:
            line_end = self.text.find("\n", start)
            self.position = line_end if line_end >= 0 else len(self.text)
            self.fault("this string is not closed on its line", start, self.position)
            return Node(Kind.BROKEN, start, self.position, self.text[start + 1 : self.position])
        self.position = match.end()
        double = match.group(1) is not None
        inner = match.group(1) if double else match.group(2)
        if not double:
            self.fault("a string in single quotes", start, self.position, hjson=True)
        if _TEMPLATE.search(inner):
            return Node(Kind.TEMPLATE, start, self.position, inner)
        return Node(Kind.SCALAR, start, self.position, _unescape(inner))

    def _bare(self) -> Node:
        start = self.position
        match = _BARE.match(self.text, start)
        if match is None:
            self.fault(f"`{self.text[start]}` is not expected here", start, start + 1)
            self.position += 1
            return Node(Kind.BROKEN, start, start + 1)
        self.position = match.end()
        word = match.group()
        if word in _WORDS:
            return Node(Kind.SCALAR, start, self.position, _WORDS[word])
        if number := _NUMBER.fullmatch(word):
            whole = number.group(1) is None and number.group(2) is None
            return Node(Kind.SCALAR, start, self.position, int(word) if whole else float(word))
        if word in _PYTHON_WORDS:
            self.fault(f"`{word}` is Python, JSON writes `{_json_word(word)}`", start, self.position)
            return Node(Kind.SCALAR, start, self.position, _PYTHON_WORDS[word])
        if _CAPITALS.fullmatch(word):
            message = f"`{word[:60]}` is no JSON value, and looks like a placeholder that a script replaces"
            self.fault(message, start, self.position, template=True)
            return Node(Kind.TEMPLATE, start, self.position, word)
        self.fault(f"`{word[:60]}` is no JSON value; a text stands in double quotes", start, self.position)
        return Node(Kind.BROKEN, start, self.position, word)


def _json_word(word: str) -> str:
    return "null" if word == "None" else word.lower()


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    plain = _ESCAPE.sub(_unescaped, text)
    # Two escaped surrogates are one character; a lone one could not be written out again.
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _unescaped(match: re.Match[str]) -> str:
    code = match.group(1)
    if code[0] == "u" and len(code) == 5:
        return chr(int(code[1:], 16))
    return _ESCAPES.get(code, code)
