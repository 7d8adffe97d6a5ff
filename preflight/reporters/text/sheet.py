"""Lines for a terminal: wrapped, coloured, and free of control sequences."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from preflight._util.sanitize import clean, neutralize_commands
from preflight.reporters.base import Style

#: How colours are encoded.
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


class Sheet:
    """A page that is built line by line."""

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
        """Return all lines so far, without trailing spaces."""
        lines = (line.rstrip() for line in self._sink.getvalue().split("\n"))
        return "\n".join(lines).strip("\n") + "\n"

    def line(self, text: Text | str = "", style: str = "") -> None:
        """Add one line without wrapping it."""
        shown = Text(text, style=style) if isinstance(text, str) else text
        # Remove control characters and commands, whatever a file, a node or a recording put into the line.
        harmless = neutralize_commands(clean(shown.plain))
        if harmless != shown.plain:
            shown = Text(harmless)
        self._console.print(shown, no_wrap=True, overflow="ignore", crop=False)

    def note(self, text: str) -> None:
        """Add a note: useful information that is not a finding."""
        self.wrapped(f"note: {text}", indent=0, hanging=2)

    def cut(self, text: Text | str) -> None:
        """Add one line, cut at the page width with an ellipsis."""
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
        max_lines: int | None = None,
    ) -> None:
        """Add wrapped text; `hanging` is the extra indent of all lines but the first, `max_lines` the largest number of
        lines.

        If lines are dropped, the last one ends with an ellipsis.
        """
        cleaned = clean(text, keep_newlines=True)
        width = max(20, self.style.width - indent - hanging - len(label))
        pieces = [
            piece.plain.rstrip()
            for paragraph in cleaned.split("\n")
            for piece in Text(paragraph).wrap(self._console, width)
        ]
        if max_lines is not None and len(pieces) > max_lines:
            last = Text(f"{pieces[max_lines - 1]} …")
            last.truncate(width, overflow="ellipsis")
            pieces = [*pieces[: max_lines - 1], last.plain]
        for number, piece in enumerate(pieces):
            line = Text(" " * (indent if number == 0 else indent + hanging))
            line.append(label if number == 0 else " " * len(label), style=style)
            line.append(piece, style="none" if label else style)
            self.line(line)


def rows(lines: Sequence[str], width: int) -> int:
    """Return the number of screen rows of these lines; a line that is too long takes several."""
    return sum(max(1, -(-cell_len(_ESCAPES.sub("", line)) // width)) for line in lines)
