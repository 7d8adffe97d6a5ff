"""Reading a page back as a browser does: elements, attributes and texts, by the standard library's own parser."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

#: Elements without an end.
VOID = {"meta", "img", "source", "input", "br", "link", "hr", "wbr"}


@dataclass
class Element:
    """An element with its content."""

    name: str
    attributes: dict[str, str]
    children: list[Element] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def all(self, name: str = "", **attributes: str) -> list[Element]:
        """Every element below of this name with these attributes, in order; `cls` is `class`."""
        wanted = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()}
        found = []
        for child in self.children:
            if (not name or child.name == name) and all(child.attributes.get(k) == v for k, v in wanted.items()):
                found.append(child)
            found.extend(child.all(name, **attributes))
        return found

    @property
    def text(self) -> str:
        """All text in it, blanks as one."""
        return " ".join("".join(self._pieces()).split())

    def _pieces(self) -> list[str]:
        return [*self.texts, *(piece for child in self.children for piece in child._pieces())]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("", {})
        self._open = [self.root]
        self.mistakes: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        if len(names) != len(set(names)):
            self.mistakes.append(f"<{tag}> has an attribute twice: {names}")
        element = Element(tag, {name: value or "" for name, value in attrs})
        self._open[-1].children.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        if self._open[-1].name != tag:
            self.mistakes.append(f"</{tag}> ends <{self._open[-1].name}>")
            return
        self._open.pop()

    def handle_data(self, data: str) -> None:
        # Kept as an element of its own, so that the order of text and elements stays.
        self._open[-1].children.append(Element("#text", {}, texts=[data]))


def parsed(page: bytes) -> Element:
    """The page as a tree. Fails where an element is not closed by its own end."""
    reader = _Reader()
    reader.feed(page.decode())
    reader.close()
    assert not reader.mistakes, reader.mistakes
    assert len(reader._open) == 1, [element.name for element in reader._open]
    return reader.root
