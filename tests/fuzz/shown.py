"""Checks of output: untrusted text must not control a terminal, a browser, a CI runner or a page."""

from __future__ import annotations

import re
import unicodedata
from html.parser import HTMLParser

from tests.fuzz.target import Fault

_UNSEEN = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
#: Commands for a runner of GitHub Actions, with any blanks in front.
_COMMAND = re.compile(r"^\s*(?:::[A-Za-z-]+(?:\s[^\n]*)?::|##\[)", re.M)


def no_control_characters(text: str) -> None:
    """Check that the only control characters are newlines and preflight's own colours."""
    for character in set(_COLOUR.sub("", text)) - {"\n"}:
        if unicodedata.category(character) in _UNSEEN:
            at = text.index(character)
            raise Fault("a control character is shown", repr(text[max(0, at - 40) : at + 20]))


def no_commands(text: str) -> None:
    """Check that no line is a command for a runner."""
    match = _COMMAND.search(text)
    if match is not None:
        raise Fault("a line looks like a command of a runner", repr(text[match.start() : match.start() + 80]))


class Elements(HTMLParser):
    """The elements of a page with the names of their attributes, and all link targets."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.names: set[tuple[str, str]] = set()
        self.targets: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the names."""
        self.names.add((tag, ""))
        for name, value in attrs:
            self.names.add((tag, name))
            if name in ("href", "src", "action", "formaction", "xlink:href", "data"):
                self.targets.add((value or "").partition(":")[0] if ":" in (value or "") else "")

    def handle_comment(self, data: str) -> None:
        """Comments count as names too: untrusted text must not open or end one."""
        self.names.add(("!--", ""))


def elements(page: str) -> Elements:
    """The elements of a page."""
    found = Elements()
    found.feed(page)
    found.close()
    return found
