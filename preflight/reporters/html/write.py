"""Renders the page: templates that escape everything, with style and script inside the page and nothing external.

The content security policy of the page forbids all requests, and all scripts and styles other than its own, which it
names by hash. So even unescaped text would not run.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections.abc import Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from preflight._util.sanitize import clean
from preflight.reporters.html.view import Page

if TYPE_CHECKING:
    from jinja2 import Environment

#: Number of characters of a list of nodes that a sentence shows.
_MAX_NAMES_LENGTH = 60
#: Text of up to this length is never broken.
_SHORT = 30
#: The name of an option, up to a length that fits on a phone.
_OPTION = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]{0,30}")
_STYLE, _SCRIPT = "report.css", "report.js"


def written(page: Page) -> bytes:
    """Return the page as one UTF-8 file."""
    return rendered("page.html", page=page)


def rendered(template: str, **values: Any) -> bytes:
    """Return a template filled in, with our style, script and policy, as UTF-8."""
    style, script = static_text(_STYLE), static_text(_SCRIPT)
    # Our own files: the only content that is not escaped.
    own = {"style": Markup(style), "script": Markup(script), "policy": _policy(style, script)}
    text: str = environment().get_template(template).render(**values, **own)
    return text.encode("utf-8", "replace")


def _policy(style: str, script: str) -> str:
    return "; ".join(
        (
            "default-src 'none'",
            f"style-src '{_sum(style)}'",
            f"script-src '{_sum(script)}'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def _sum(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@functools.cache
def static_text(name: str, package: str = __package__) -> str:
    """Return the text of a file in the folder `static` of a package."""
    return (resources.files(package) / "static" / name).read_text(encoding="utf-8")


def stylesheet() -> str:
    """Return the style of the page, for pages with the same look."""
    return static_text(_STYLE)


@functools.cache
def environment(*packages: str) -> Environment:
    """Return what fills in our templates; everything is escaped.

    Args:
        packages: packages whose `templates` folder is searched before ours.
    """
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(functools.partial(_template, (*packages, str(__package__)))),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,
    )
    environment.filters["prose"] = prose
    environment.filters["breakable"] = breakable
    environment.filters["whole_options"] = whole_options
    environment.filters["shortened"] = shortened
    environment.filters["anchor"] = lambda text: text.lower().replace(" ", "-").replace(".", "-")
    return environment


def _shown(value: Any) -> Any:
    """Remove control characters from every text, whatever a file, a node or a recording contains."""
    if isinstance(value, (Markup, int, float)) or value is None:
        return value
    # This includes values that are not text: a location is shown by its path.
    return clean(str(value), keep_newlines=True)


def prose(text: str) -> Markup:
    """Show text between backticks as code; with an odd number of backticks the text is unchanged."""
    pieces = clean(text, keep_newlines=True).split("`")
    if len(pieces) % 2 == 0:
        return escape("`".join(pieces))
    joined = Markup("")
    for number, piece in enumerate(pieces):
        # Two adjacent backticks mark nothing.
        joined += Markup("<code>{}</code>").format(whole_options(piece)) if number % 2 and piece else escape(piece)
    return joined


def whole_options(text: str) -> Markup:
    """Keep the names of options on one line: browsers break lines after each hyphen of `--master-addr`."""
    text, joined, end = clean(text, keep_newlines=True), Markup(""), 0
    for match in _OPTION.finditer(text):
        joined += escape(text[end : match.start()]) + Markup('<span class="option">{}</span>').format(match[0])
        end = match.end()
    return joined + escape(text[end:])


def breakable(text: str) -> Markup:
    """Allow line breaks after the commas of long text: ranges of nodes contain no spaces."""
    if len(text) <= _SHORT:
        return escape(clean(text, keep_newlines=True))
    return Markup(",<wbr>").join(clean(text, keep_newlines=True).split(","))


def shortened(text: str) -> str:
    """Shorten text whose beginning is enough."""
    return text if len(text) <= _MAX_NAMES_LENGTH else f"{text[:_MAX_NAMES_LENGTH]}…"


def _template(packages: Sequence[str], name: str) -> str | None:
    """Return the source of a template from the first of these packages that has it."""
    for package in packages:
        found = resources.files(package) / "templates" / name
        if found.is_file():
            return found.read_text(encoding="utf-8")
    return None
