"""Target: the comment on a pull request, with hostile text in the report, in the plan and in the comment before."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from html.parser import HTMLParser

from markdown_it import MarkdownIt

from preflight.commands.comment import ChangeReport, JobChange, comment, is_ours
from preflight.commands.plan.plan_pages import Change
from tests.fuzz.limits import MIB, Limits
from tests.fuzz.reports import SPLIT, hostile, texts
from tests.fuzz.shown import no_control_characters
from tests.fuzz.target import Fault, Target

_KEY = "0123456789ab"
#: Elements of our comments, as a platform renders them.
_OURS = {*("h3", "h4", "p", "table", "tr", "th", "td", "code", "ul", "li", "br", "thead", "tbody")}
#: What a platform makes a link or a picture of, outside of code: users, issues, requests, addresses, commits, emoji.
_REFERENCE = re.compile(r"@\w|[#!~%&$^]\w|://|www\.|\b[0-9a-f]{30,}\b|:\w+:|\bGH-\d|\[\w+:")
_SIZES = (9_000, 65_000, 990_000)


def targets() -> Iterator[Target]:
    """The one target."""
    yield Target("comment", _written, _seeds, max_file_bytes=8192, limits=Limits(4.0, 192 * MIB))


def _seeds() -> Iterator[bytes]:
    yield from texts()
    for number, words in enumerate(
        (
            b"@everyone #1 !2 ~label %3 &4 $5 GH-6 https://evil.example www.evil.example a@b.example",
            b"</td></table>\n\n# Approved\n\n[click](https://evil.example) ![x](https://evil.example/x.png)",
            b"<!-- --> <script>alert(1)</script> <img src=x onerror=alert(1)> <!-- preflight-comment",
            b"``` `` ` | || \\| </code> &lt; &#64;user &commat;user :smile: \xe2\x80\xae\xe2\x80\x8b",
            b"- [x] done\n> quote\n---\n***\n/close\n/assign @me\n/merge",
        )
    ):
        yield bytes((number * 9,)) + SPLIT.join(words.split(b" ")) + SPLIT + words


def _written(data: bytes) -> None:
    pieces = [part.decode("utf-8", "surrogateescape") for part in data[1:].split(SPLIT)] or [""]
    supply = itertools.cycle(pieces)
    report = hostile(data)
    plans = tuple(
        JobChange(next(supply), tuple(Change(*(next(supply) for _ in range(4))) for _ in range(3))) for _ in range(3)
    )
    marked = frozenset(finding.fingerprint for finding in report.findings[::2])
    for not_compared in ("", next(supply) or "x"):
        found = ChangeReport(report, marked, plans, not_compared)
        before = next(supply)
        for size in _SIZES:
            made = comment(found, _KEY, before=before, max_characters=size).body
            if made != comment(found, _KEY, before=before, max_characters=size).body:
                raise Fault("one comment is written in two ways")
            if len(made) > size:
                raise Fault("a comment is larger than the platform accepts", f"{len(made)} > {size}")
        check_comment(made)


def check_comment(made: str) -> None:
    """Check that a comment holds no markup, link, mention or command of a stranger."""
    no_control_characters(made)
    if not is_ours(made, _KEY):
        raise Fault("a comment is not recognised as ours", made[:80])
    shown = _Shown()
    shown.feed(MarkdownIt("gfm-like", {"html": True, "linkify": False}).render(made))
    shown.close()
    if shown.comments != 1:
        raise Fault("a comment holds another hidden line", str(shown.comments))
    if shown.strange:
        raise Fault("a comment holds markup of a stranger", repr(sorted(shown.strange)[:4]))
    found = _REFERENCE.search("\n".join(shown.texts))
    if found is not None:
        raise Fault("a comment holds a reference outside of code", found[0])
    for line in made.split("\n"):
        if line.startswith("/"):
            raise Fault("a line is a command of GitLab", line[:80])


class _Shown(HTMLParser):
    """What a platform shows: the texts outside of code, and elements that are not ours."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.texts: list[str] = []
        self.strange: set[str] = set()
        self.comments = 0
        self._in_code = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect elements."""
        if tag not in _OURS or any(name != "colspan" for name, _ in attrs):
            self.strange.add(f"{tag} {attrs}")
        self._in_code += tag == "code"

    def handle_endtag(self, tag: str) -> None:
        """Leave code."""
        self._in_code -= tag == "code"

    def handle_comment(self, data: str) -> None:
        """Count hidden lines."""
        self.comments += 1

    def handle_data(self, data: str) -> None:
        """Collect text outside of code."""
        if not self._in_code:
            self.texts.append(data)
