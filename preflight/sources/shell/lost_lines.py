"""Parts of a script that cannot be parsed: an `if` without `fi`, and launch lines after an open quote or parenthesis.

A shell stops there with a syntax error. The user will fix that before the job starts, so the launch is still read,
separately, with the final variables of the rest of the script.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from preflight.sources.shell.shell_document import Document

if TYPE_CHECKING:
    from tree_sitter import Node

#: A launcher where a command may begin, after assignments and programs that start others.
_LAUNCH = re.compile(
    r"(?:^|[;&|(]|\b(?:srun|mpirun|mpiexec|exec|nohup|time|env|timeout|singularity|apptainer|docker|ssh)\b[^#]*)\s*"
    r"(?:[A-Za-z_]\w*=\S*\s+)*(?:\S*/)?"
    r"(?:torchrun|deepspeed|accelerate\s+launch|fleetrun|horovodrun|srun\s|mpirun\s|mpiexec\s"
    r"|python[\d.]*\s+(?:-\w\s+)*-m\s+(?:torch|paddle)\.distributed)"
)
#: Lines and open constructs of one script that are listed.
MAX_LOST_LINES = 50
_MAX_LINE = 8_000
#: The words that close constructs of the shell. The grammar also misses braces in expansions that the shell accepts.
_CLOSING = frozenset(("fi", "done", "esac"))


def lost_lines(document: Document, seen: Collection[int]) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each launch line in a damaged part of the script.

    Args:
        document: the script.
        seen: the lines, from 1, on which a command was read.
    """
    text = document.text
    count = 0
    for first, end in _damaged_ranges(document):
        start = text.rfind("\n", 0, first) + 1
        while start < end and count < MAX_LOST_LINES:
            stop = _logical_end(text, start)
            line = text[start:stop]
            number = document.place(start, min(start + 1, len(text))).span.line
            if (
                len(line) < _MAX_LINE
                and number not in seen
                and not line.lstrip().startswith("#")
                and _LAUNCH.search(line)
            ):
                count += 1
                yield start + len(line) - len(line.lstrip()), stop
            start = stop + 1


def unclosed(document: Document) -> Iterator[tuple[str, Node]]:
    """Yield each missing `fi`, `done` or `esac`, with the construct that lacks it, outermost first."""
    waiting: list[Node] = [document.root]
    while waiting:
        node = waiting.pop()
        if not node.has_error or node.type == "ERROR":
            continue
        for child in node.children:
            if child.is_missing and child.type in _CLOSING:
                yield child.type, node
        waiting.extend(reversed(node.children))


def _logical_end(text: str, start: int) -> int:
    """The end of a line, including the lines on which it continues."""
    while True:
        stop = text.find("\n", start)
        if stop < 0:
            return len(text)
        if not text[:stop].rstrip("\r").endswith("\\"):
            return stop
        start = stop + 1


def _damaged_ranges(document: Document) -> Iterator[tuple[int, int]]:
    """Yield the parts of a script that the parser did not understand, outermost first."""
    waiting: list[Node] = [document.root]
    while waiting:
        node = waiting.pop()
        if not node.has_error or node.type == "heredoc_body":
            continue
        broken = node.type in ("ERROR", "string", "array", "subscript", "command_substitution")
        if broken or any(child.is_missing for child in node.children):
            yield node.start_byte, node.end_byte
        else:
            waiting.extend(reversed(node.children))
