"""Names that expand to several files: ranges in braces, prefixes of indexed data sets, and lists of files."""

from __future__ import annotations

import os
import re
from typing import Iterator, List, Optional

#: A pattern may expand to more; no folder has that many shards.
MAX_NAMES = 50000
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"^(-?\d+)\.\.(-?\d+)(?:\.\.(\d+))?$")
_LETTERS = re.compile(r"^([A-Za-z])\.\.([A-Za-z])$")
_MAX_LIST_BYTES = 4 << 20


def has_braces(text: str) -> bool:
    """Whether the text contains brace expansions, as in webdataset and the shell."""
    return any(_alternatives(found) is not None for found in _BRACES.findall(text))


def expanded(text: str) -> List[str]:
    """All expansions of a text with braces, at most MAX_NAMES; a text without braces expands to itself."""
    found = []  # type: List[str]
    for name in _expand(text):
        if len(found) >= MAX_NAMES:
            break
        found.append(name)
    return found


def _expand(text: str) -> Iterator[str]:
    for match in _BRACES.finditer(text):
        choices = _alternatives(match.group(1))
        if choices is None:
            continue
        for choice in choices:
            for rest in _expand(text[match.end() :]):
                yield text[: match.start()] + choice + rest
        return
    yield text


def _alternatives(inside: str) -> Optional[List[str]]:
    numbers = _RANGE.match(inside)
    if numbers:
        first, last, step = numbers.group(1), numbers.group(2), max(1, int(numbers.group(3) or 1))
        low, high = int(first), int(last)
        if abs(high - low) // step > MAX_NAMES:
            return None
        padded = any(len(word.lstrip("-")) > 1 and word.lstrip("-").startswith("0") for word in (first, last))
        width = max(len(first), len(last)) if padded else 0
        values = range(low, high + 1, step) if low <= high else range(low, high - 1, -step)
        return [str(value).zfill(width) for value in values]
    letters = _LETTERS.match(inside)
    if letters:
        low, high = ord(letters.group(1)), ord(letters.group(2))
        return [chr(code) for code in (range(low, high + 1) if low <= high else range(low, high - 1, -1))]
    return inside.split(",") if "," in inside else None


def indexed(prefix: str) -> List[str]:
    """The two files of an indexed data set that is named by its prefix (Megatron-LM's --data-path); empty if it is not
    one.
    """
    files = [prefix + ".bin", prefix + ".idx"]
    return files if any(os.path.exists(name) for name in files) else []


def is_list(path: str) -> bool:
    """Whether a file lists others, by its name (Paddle's train.list)."""
    return path.endswith((".list", ".filelist", "file_list.txt", "filelist.txt"))


def listed(path: str) -> Optional[List[str]]:
    """The files that a list names, one a line, first word; relative ones as the reader finds them. None: unreadable.

    Readers resolve a name from the working directory; lists are often written for their own folder, so that is tried if
    the first location does not exist.
    """
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read(_MAX_LIST_BYTES).splitlines()
    except OSError:
        return None
    folder = os.path.dirname(path)
    found = []  # type: List[str]
    for line in lines[:MAX_NAMES]:
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        here, candidate = os.path.abspath(words[0]), os.path.join(folder, words[0])
        found.append(candidate if not os.path.exists(here) and os.path.exists(candidate) else here)
    return found
