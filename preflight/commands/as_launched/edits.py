"""Text edits in files, as ranges of characters; either all or none of them are made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from preflight.model.job import Span


@dataclass(frozen=True, slots=True, order=True)
class Edit:
    """Replaces characters `start` to `end` of the file `path` with `text`."""

    path: str
    start: int
    end: int
    text: str


class Refusal(Exception):
    """A program cannot be replaced without changing something else; `span` is the location, if there is one."""

    def __init__(self, message: str, span: Span | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.span = span

    def __str__(self) -> str:
        return f"{self.span.path}:{self.span.line}: {self.message}" if self.span is not None else self.message


def apply(texts: Mapping[str, str], edits: Iterable[Edit]) -> dict[str, str]:
    """Return the files that change, with their new text.

    Raises:
        Refusal: two edits replace the same characters differently.
    """
    by_path: dict[str, list[Edit]] = {}
    for edit in dict.fromkeys(edits):
        by_path.setdefault(edit.path, []).append(edit)
    changed = {}
    for path, found in sorted(by_path.items()):
        text, next_start = texts[path], len(texts[path]) + 1
        for edit in sorted(found, reverse=True):
            if edit.end > next_start:
                line = text.count("\n", 0, edit.start) + 1
                raise Refusal(f"{path}:{line}: two launches share words that would need different replacements")
            text = text[: edit.start] + edit.text + text[edit.end :]
            next_start = edit.start
        changed[path] = text
    return changed
