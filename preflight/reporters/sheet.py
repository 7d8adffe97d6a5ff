"""Lines for a terminal: wrapped, coloured, and with nothing in them that a terminal would obey."""

from __future__ import annotations

import io

from rich.console import Console
from rich.text import Text

from preflight.reporters.base import Style
from preflight.reporters.clean import clean


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

    def wrapped(self, text: str, *, indent: int = 2, hanging: int = 0, label: str = "", style: str = "") -> None:
        """`text` wrapped; `hanging` is how much further than its first line the others stand."""
        cleaned = clean(text, keep_newlines=True)
        width = max(20, self.style.width - indent - hanging - len(label))
        first = True
        for paragraph in cleaned.split("\n"):
            for piece in Text(paragraph).wrap(self._console, width):
                line = Text(" " * (indent if first else indent + hanging))
                line.append(label if first else " " * len(label), style=style)
                line.append(piece.plain.rstrip(), style="none" if label else style)
                self.line(line)
                first = False
