"""Finds the lines of a log chunk that may matter, without examining the others one by one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

#: A longer line is cut; an error message is at its beginning.
MAX_LENGTH = 4000
#: Words of which nearly every line about a failure contains one; a needle with none of them is searched for itself.
_WORDS = (
    "error", "fail", "kill", "signal", "timed out", "timeout", "exception", "abort", "fatal", "refused", "reset",
    "closed", "traceback", "denied", "cannot", "can't", "unable", "invalid", "terminat", "mismatch", "exit", "no such",
    "warn", "not found", "no space", "not enough", "out of memory",
)  # fmt: skip
#: The finder remembers this many lines, of up to this many bytes.
_MAX_KNOWN = 50_000
_MAX_KNOWN_LENGTH = 500
_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]{0,40}[ -/]{0,8}[@-~]|\][^\x07\x1b]{0,400}(?:\x07|\x1b\\)|[@-Z\\-_]|[()][0-9A-Za-z])"
)
_UNSHOWN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Finder:
    """Finds the lines that contain one of some words, in bytes and without decoding the others.

    Most lines of a log differ only in their numbers, so the finder remembers for each line without its digits
    whether it contains a word. Words lose their digits too, which finds a few more lines and misses none.
    """

    def __init__(self, needles: Iterable[str]) -> None:
        plain = {digitless(needle.encode()) for needle in needles}
        extra = sorted((one for one in plain if not any(word.encode() in one for word in _WORDS)), key=len)
        least: list[bytes] = []
        for needle in extra:
            if not any(other in needle for other in least):
                least.append(needle)
        self._words = (*(word.encode() for word in _WORDS), *least)
        self._known: dict[bytes, bool] = {}

    def starts(self, chunk: bytes) -> list[int]:
        """Return the offsets of the lines of a chunk that contain one of the words, in order."""
        known = self._known
        if len(known) > _MAX_KNOWN:
            known.clear()
        numbers: list[int] = []
        for number, line in enumerate(digitless(chunk.lower()).split(b"\n")):
            meaning = known.get(line)
            if meaning is None:
                meaning = any(word in line for word in self._words)
                if len(line) <= _MAX_KNOWN_LENGTH:
                    known[line] = meaning
            if meaning:
                numbers.append(number)
        return _offsets(chunk, numbers)


def digitless(text: bytes) -> bytes:
    """Return the line without digits, which is the same for lines that differ only in numbers."""
    return text.translate(None, b"0123456789")


def _offsets(chunk: bytes, numbers: list[int]) -> list[int]:
    """Return the offsets of the lines with these numbers, counted from 0 and sorted."""
    if not numbers:
        return []
    found: list[int] = []
    wanted = iter(numbers)
    next_number = next(wanted)
    at = 0
    for number, line in enumerate(chunk.split(b"\n")):
        if number == next_number:
            found.append(at)
            following = next(wanted, None)
            if following is None:
                break
            next_number = following
        at += len(line) + 1
    return found


def pieces(raw: bytes) -> Iterator[str]:
    """Return the cleaned strings that a line of a file displays; several, because progress bars overwrite themselves.

    `raw` has no newline. Undecodable bytes and control characters are replaced.
    """
    if raw.find(b"\r") >= 0:
        for part in raw.split(b"\r"):
            if part.strip():
                yield cleaned(part)
    else:
        yield cleaned(raw)


#: Share of bytes that no text has, from which on a file is data.
_BINARY_SHARE = 0.1


def looks_binary(chunk: bytes) -> bool:
    """Return whether the beginning of a file is data rather than text of any encoding that contains ASCII."""
    sample = chunk[:65536]
    strange = len(sample) - len(sample.translate(None, _NOT_TEXT))
    undecodable = sample.decode("utf-8", "replace").count("\ufffd")
    return strange > _BINARY_SHARE * len(sample) or undecodable > 2 * _BINARY_SHARE * len(sample)


_NOT_TEXT = bytes(set(range(32)) - {8, 9, 10, 12, 13, 27})


def cleaned(raw: bytes) -> str:
    """Return the text without escape sequences and control characters, up to MAX_LENGTH characters."""
    text = raw[: 2 * MAX_LENGTH].decode("utf-8", "replace")
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    return _UNSHOWN.sub("\ufffd", text).rstrip()[:MAX_LENGTH]
