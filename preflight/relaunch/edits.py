"""Changes to the text of files, as stretches of characters; all or none of them can be made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from preflight.job import Span
from preflight.lazy.dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Edit:
    """Characters `start` to `end` of the file `path` become `text`."""

    path: str
    start: int
    end: int
    text: str


class Refusal(Exception):
    """Something cannot be replaced without changing more; `span` is the place, where there is one."""

    def __init__(self, message: str, span: Span | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.span = span

    def __str__(self) -> str:
        return f"{self.span.path}:{self.span.line}: {self.message}" if self.span is not None else self.message


def apply(texts: Mapping[str, str], edits: Iterable[Edit]) -> dict[str, str]:
    """The files that change, with their new text.

    Raises:
        Refusal: two edits want the same characters to become something different.
    """
    by_path: dict[str, list[Edit]] = {}
    for edit in dict.fromkeys(edits):
        by_path.setdefault(edit.path, []).append(edit)
    changed = {}
    for path, found in sorted(by_path.items()):
        text, behind = texts[path], len(texts[path]) + 1
        for edit in sorted(found, reverse=True):
            if edit.end > behind:
                line = text.count("\n", 0, edit.start) + 1
                raise Refusal(f"{path}:{line}: two launches share words that would have to become different ones")
            text = text[: edit.start] + edit.text + text[edit.end :]
            behind = edit.start
        changed[path] = text
    return changed
