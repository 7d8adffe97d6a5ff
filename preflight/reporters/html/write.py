"""From the page to its bytes: templates that escape everything, style and script in the page, and nothing from outside.

The page's own policy forbids every request and every script and style but its own, which are named by their sums: what
slipped through the escaping would still not run.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from importlib import resources
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from preflight.reporters.clean import clean
from preflight.reporters.html.view import Page

if TYPE_CHECKING:
    from jinja2 import Environment

#: So much of a list of nodes stands in a sentence.
_ENOUGH = 60
#: What is no longer than this is never broken.
_SHORT = 30
_STYLE, _SCRIPT = "report.css", "report.js"


def written(page: Page) -> bytes:
    """The page as one file in UTF-8."""
    style, script = _static(_STYLE), _static(_SCRIPT)
    text = (
        _environment()
        .get_template("page.html")
        .render(
            page=page,
            # Files of our own: the only things that are not escaped.
            style=Markup(style),
            script=Markup(script),
            policy=_policy(style, script),
        )
    )
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
def _static(name: str) -> str:
    return (resources.files(__package__) / "static" / name).read_text(encoding="utf-8")


@functools.cache
def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(_template),
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
    environment.filters["shortened"] = shortened
    environment.filters["anchor"] = lambda text: text.lower().replace(" ", "-").replace(".", "-")
    return environment


def _shown(value: Any) -> Any:
    """The last door: whatever a file, a node or a recording put into a text, no control character gets to the page."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return clean(value, keep_newlines=True)
    return value


def prose(text: str) -> Markup:
    """Text with what stands between backticks as code; with an odd number of them, as it is."""
    pieces = clean(text, keep_newlines=True).split("`")
    if len(pieces) % 2 == 0:
        return escape("`".join(pieces))
    joined = Markup("")
    for number, piece in enumerate(pieces):
        # Two backticks with nothing between them mark nothing.
        joined += Markup("<code>{}</code>").format(piece) if number % 2 and piece else escape(piece)
    return joined


def breakable(text: str) -> Markup:
    """Text that may be broken behind its commas, where it is long: ranges of nodes have no blanks."""
    if len(text) <= _SHORT:
        return escape(clean(text, keep_newlines=True))
    return Markup(",<wbr>").join(clean(text, keep_newlines=True).split(","))


def shortened(text: str) -> str:
    """Text of which the beginning is enough."""
    return text if len(text) <= _ENOUGH else f"{text[:_ENOUGH]}…"


def _template(name: str) -> str | None:
    """A template of this package, wherever it is installed."""
    found = resources.files(__package__) / "templates" / name
    return found.read_text(encoding="utf-8") if found.is_file() else None
