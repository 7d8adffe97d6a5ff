"""Reads JSON with mistakes, keeps the location of every value, and reports the mistakes.

Real configuration has comments, trailing and missing commas, template placeholders, or is cut off. A reader that stops
at the first fault would lose the readable keys, and a reader that loses the nesting after a missing comma (as the error
recovery of tree-sitter's grammar does) would state them at the wrong depth.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from preflight._util.budget import note_skipped, spend
from preflight.model.job import Plain
from preflight.sources.formats.structured import Document, Fault, Kind, Member, Node

#: Configuration is not nested more deeply; Python's own recursion limit must never be reached.
MAX_DEPTH = 60
#: A file with more faults than this is not configuration, and the rest of it is not read.
MAX_FAULTS = 200

_SPACE = re.compile(r"[ \t\r\n\f\v\ufeff\xa0]+")
_COMMENT = re.compile(r"//[^\n]*|#[^\n]*|/\*.*?\*/", re.DOTALL)
#: Placeholders are short; an unbounded search for their end would be quadratic in hostile input.
_TEMPLATE = re.compile(
    r"\{\{[^\n]{0,200}?\}\}|\{%[^\n]{0,200}?%\}|\$\{[^}\n]{0,200}\}|<%[^\n]{0,200}?%>|\$\([^)\n]{0,200}\)"
    r"|@[A-Za-z_]\w{0,100}@"
)
#: The content of a string up to its end, a thousand escapes at a time.
_PLAIN_DOUBLE = re.compile(r'[^"\\\n]*(?:\\.[^"\\\n]*){0,1000}', re.DOTALL)
_PLAIN_SINGLE = re.compile(r"[^'\\\n]*(?:\\.[^'\\\n]*){0,1000}", re.DOTALL)
_MAX_SETTING_LENGTH = 4096
_NUMBER = re.compile(r"-?\d{1,40}(\.\d{1,40})?([eE][+-]?\d{1,4})?", re.ASCII)
#: `BATCH_SIZE`: placeholder of template files for sed.
_CAPITALS = re.compile(r"[A-Z][A-Z0-9]*(?:_\w+)+|[A-Z][A-Z0-9]{2,}", re.ASCII)
_BARE = re.compile(r"[^\s,:{}\[\]\"']+")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_WORDS: dict[str, Plain] = {"true": True, "false": False, "null": None}
_PYTHON_WORDS: dict[str, Plain] = {"True": True, "False": False, "None": None}


def parse(text: str) -> Document:
    """Parse `text`; never raises. The root is None if the text is empty."""
    reader = _Reader(text)
    reader.skip()
    if reader.position >= len(text):
        return Document(None, (Fault("the file is empty, expected `{`", 0, 0),))
    root = reader.value(0)
    reader.skip()
    if reader.position < len(text):
        reader.fault("text after the end of the JSON value", reader.position, len(text))
    return Document(root, tuple(reader.faults))


@dataclass
class _Reader:
    text: str
    position: int = 0
    faults: list[Fault] = field(default_factory=list)
    _commented: bool = False

    def fault(self, message: str, start: int, end: int, *, hjson: bool = False, template: bool = False) -> None:
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(Fault(message, start, end, hjson, template))

    def at(self, sign: str) -> bool:
        return self.text.startswith(sign, self.position)

    def skip(self) -> None:
        """Skip white space and comments."""
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
        spend()
        start = self.position
        if match := _TEMPLATE.match(self.text, start):
            return self._template(match.end())
        if depth > MAX_DEPTH:
            self.fault(f"nested more than {MAX_DEPTH} levels deep; the rest is not read", start, start + 1)
            note_skipped(f"values more than {MAX_DEPTH} levels deep, and everything after them, were not read")
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
        """Return a placeholder, with adjacent characters (`{{ n }}0`)."""
        start = self.position
        while end < len(self.text) and (match := _TEMPLATE.match(self.text, end) or _BARE.match(self.text, end)):
            end = match.end()
        self.position = end
        shown = self.text[start:end]
        self.fault(f"`{shown[:60]}` is a placeholder that is replaced later", start, end, template=True)
        return Node(Kind.TEMPLATE, start, end, shown)

    def _object(self, depth: int) -> Node:
        start = self.position
        self.position += 1
        members: list[Member] = []
        while not self._ends("object", "}", start):
            here = self.position
            if match := _TEMPLATE.match(self.text, here):
                # Template statements (`{% if %}`) are between members and need no comma.
                self._template(match.end())
                self.skip()
                if self.at(","):
                    self.position += 1
            elif (member := self._member(depth)) is not None:
                members.append(member)
                self._comma("}", member.node.end)
            elif self.position == here:
                self.fault(f"unexpected `{self.text[here]}`", here, here + 1)
                self.position += 1
        return Node(Kind.OBJECT, start, self.position, members=tuple(members))

    def _ends(self, kind: str, closing: str, start: int) -> bool:
        """Skip to the next item of an object or list; return whether there is none."""
        if len(self.faults) >= MAX_FAULTS and self.position < len(self.text):
            note_skipped(f"it has {MAX_FAULTS} errors; the text after them was not read")
            self.position = len(self.text)
        self.skip()
        if self.position >= len(self.text):
            self._cut_off(kind, closing, start)
            return True
        if self.at(closing):
            self.position += 1
            return True
        return False

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
            self.fault(f"expected `:` and a value after the key `{key[:60]}`", start, key_end)
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
        while not self._ends("list", "]", start):
            here = self.position
            if self.at("}"):
                self.fault("this list is not closed by `]`", start, start + 1)
                break
            if self.text[here] in ",:":
                self.fault(f"unexpected `{self.text[here]}`", here, here + 1)
                self.position += 1
                continue
            items.append(self.value(depth + 1))
            self._comma("]", items[-1].end)
        return Node(Kind.ARRAY, start, self.position, items=tuple(items))

    def _comma(self, closing: str, value_end: int) -> None:
        """Read the comma after a value, or the end."""
        self.skip()
        here = self.position
        if self.at(","):
            self.position += 1
            self.skip()
            if self.at(closing):
                self.fault(f"a comma before `{closing}`", here, here + 1, hjson=True)
        elif here < len(self.text) and not self.at(closing):
            line_ended = "\n" in self.text[value_end:here]
            self.fault("a comma is missing after this", max(0, value_end - 1), value_end, hjson=line_ended)

    def _cut_off(self, kind: str, closing: str, start: int) -> None:
        line = self.text.count("\n", 0, start) + 1
        end = len(self.text)
        message = f"the file ends inside the {kind} that begins on line {line}: `{closing}` is missing"
        self.fault(message, len(self.text.rstrip()), end)

    def _string(self) -> Node:
        start = self.position
        end = self._end_of_string(start)
        if end < 0:
            line_end = self.text.find("\n", start)
            self.position = line_end if line_end >= 0 else len(self.text)
            self.fault("this string is not closed on its line", start, self.position)
            return Node(Kind.BROKEN, start, self.position, self.text[start + 1 : self.position])
        self.position = end
        inner = self.text[start + 1 : end - 1]
        if self.text[start] != '"':
            self.fault("single quotes; JSON strings need double quotes", start, self.position, hjson=True)
        # A longer text is not a setting that a placeholder could stand for.
        if _TEMPLATE.search(inner, 0, _MAX_SETTING_LENGTH):
            return Node(Kind.TEMPLATE, start, self.position, inner)
        return Node(Kind.SCALAR, start, self.position, _unescape(inner))

    def _end_of_string(self, start: int) -> int:
        """Return the position after the closing quote; -1 if there is none on the line. A single pattern would need
        memory for each character: a string may be as long as a file.
        """
        plain = _PLAIN_DOUBLE if self.text[start] == '"' else _PLAIN_SINGLE
        at = start + 1
        while True:
            spend()
            match = plain.match(self.text, at)
            at = match.end() if match is not None else at
            if self.text[at : at + 1] == self.text[start]:
                return at + 1
            if self.text[at : at + 1] != "\\" or at + 1 >= len(self.text):
                return -1

    def _bare(self) -> Node:
        start = self.position
        match = _BARE.match(self.text, start)
        if match is None:
            self.fault(f"unexpected `{self.text[start]}`", start, start + 1)
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
            value = _PYTHON_WORDS[word]
            self.fault(f"`{word}` is Python syntax; JSON uses `{json.dumps(value)}`", start, self.position)
            return Node(Kind.SCALAR, start, self.position, value)
        if _CAPITALS.fullmatch(word):
            message = f"`{word[:60]}` is not a JSON value; it looks like a placeholder that a script replaces"
            self.fault(message, start, self.position, template=True)
            return Node(Kind.TEMPLATE, start, self.position, word)
        self.fault(f"`{word[:60]}` is not a JSON value; strings need double quotes", start, self.position)
        return Node(Kind.BROKEN, start, self.position, word)


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    plain = _ESCAPE.sub(_unescape_match, text)
    # Two escaped surrogates are one character; a lone one could not be encoded.
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _unescape_match(match: re.Match[str]) -> str:
    code = match.group(1)
    if code[0] == "u" and len(code) == 5:
        return chr(int(code[1:], 16))
    return _ESCAPES.get(code, code)
