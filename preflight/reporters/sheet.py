"""Lines for a terminal: wrapped, coloured, and with nothing in them that a terminal would obey."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from preflight.lazy.patterns import lazy_pattern
from preflight.reporters.base import Style
from preflight.reporters.clean import clean

#: How colours are written.
_ESCAPES = lazy_pattern(r"\x1b\[[0-9;]*m")


class Sheet:
    """A page that grows line by line."""

    def __init__(self, style: Style) -> None:
        self.style = style
        self._sink = io.StringIO()
        self._console = Console(
            file=self._sink,
            width=style.width,
            force_terminal=style.color,
            no_color=not style.color,
            color_system="standard" if style.color else None,
            highlight=False,
            markup=False,
            emoji=False,
            soft_wrap=False,
            legacy_windows=False,
        )

    def text(self) -> str:
        """All lines so far, without blanks at their ends."""
        lines = (line.rstrip() for line in self._sink.getvalue().split("\n"))
        return "\n".join(lines).strip("\n") + "\n"

    def line(self, text: Text | str = "", style: str = "") -> None:
        """One line as it is, not wrapped."""
        shown = Text(text, style=style) if isinstance(text, str) else text
        # The last door: whatever a file, a node or a recording put into a line, no control character passes.
        if clean(shown.plain) != shown.plain:
            shown = Text(clean(shown.plain))
        self._console.print(shown, no_wrap=True, overflow="ignore", crop=False)

    def note(self, text: str) -> None:
        """Something to know that is no finding."""
        self.wrapped(f"note: {text}", indent=0, hanging=2)

    def cut(self, text: Text | str) -> None:
        """One line, cut where the page ends, with a sign that it was."""
        whole = Text(text) if isinstance(text, str) else text
        if clean(whole.plain) != whole.plain:
            whole = Text(clean(whole.plain))
        whole.truncate(self.style.width, overflow="ellipsis")
        self.line(whole)

    def wrapped(
        self,
        text: str,
        *,
        indent: int = 2,
        hanging: int = 0,
        label: str = "",
        style: str = "",
        most: int | None = None,
    ) -> None:
        """`text` wrapped; `hanging` is how much further than its first line the others stand, `most` how many stand.

        A last line that is not the last of the text ends with a sign of it.
        """
        cleaned = clean(text, keep_newlines=True)
        width = max(20, self.style.width - indent - hanging - len(label))
        pieces = [
            piece.plain.rstrip()
            for paragraph in cleaned.split("\n")
            for piece in Text(paragraph).wrap(self._console, width)
        ]
        if most is not None and len(pieces) > most:
            last = Text(f"{pieces[most - 1]} …")
            last.truncate(width, overflow="ellipsis")
            pieces = [*pieces[: most - 1], last.plain]
        for number, piece in enumerate(pieces):
            line = Text(" " * (indent if number == 0 else indent + hanging))
            line.append(label if number == 0 else " " * len(label), style=style)
            line.append(piece, style="none" if label else style)
            self.line(line)


def rows(lines: Sequence[str], width: int) -> int:
    """How many rows of a screen of this width these lines take; what is too long for one goes on in the next."""
    return sum(max(1, -(-cell_len(_ESCAPES.sub("", line)) // width)) for line in lines)
