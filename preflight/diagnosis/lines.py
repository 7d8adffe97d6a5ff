"""Lines that may matter, found in a chunk of a log without looking at all the others one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from preflight.lazy.patterns import lazy_pattern

#: A line longer than this is cut: what it says of an error stands at its beginning.
LONGEST = 4000
#: Words of which nearly every line about a failure holds one; whatever needle holds none is looked for itself.
_WORDS = (
    "error", "fail", "kill", "signal", "timed out", "timeout", "exception", "abort", "fatal", "refused", "reset",
    "closed", "traceback", "denied", "cannot", "can't", "unable", "invalid", "terminat", "mismatch", "exit", "no such",
    "warn", "not found", "no space", "not enough", "out of memory",
)  # fmt: skip
#: Of so many lines, none longer than so many bytes, it is remembered what they hold.
_MOST_KNOWN = 50_000
_LONGEST_KNOWN = 500
_ESCAPES = lazy_pattern(
    r"\x1b(?:\[[0-?]{0,40}[ -/]{0,8}[@-~]|\][^\x07\x1b]{0,400}(?:\x07|\x1b\\)|[@-Z\\-_]|[()][0-9A-Za-z])"
)
_UNSHOWN = lazy_pattern("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Finder:
    """Finds the lines that hold one of some words, in bytes and without decoding the others.

    Lines of a log are mostly the same but for their numbers, so it is remembered of each line without its digits
    whether it holds a word (without its digits, too: that finds a few lines more, and misses none).
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
        """Where the lines of a chunk begin that hold one of the words, in order."""
        known = self._known
        if len(known) > _MOST_KNOWN:
            known.clear()
        numbers: list[int] = []
        for number, line in enumerate(digitless(chunk.lower()).split(b"\n")):
            tells = known.get(line)
            if tells is None:
                tells = any(word in line for word in self._words)
                if len(line) <= _LONGEST_KNOWN:
                    known[line] = tells
            if tells:
                numbers.append(number)
        return _offsets(chunk, numbers)


def digitless(text: bytes) -> bytes:
    """What lines that differ in their numbers alone have in common."""
    return text.translate(None, b"0123456789")


def _offsets(chunk: bytes, numbers: list[int]) -> list[int]:
    """Where the lines with these numbers, counted from 0 and in order, begin."""
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
    """What a line of a file shows: progress bars write many over each other, of which each is one; cleaned.

    Raw is without its newline. Undecodable bytes and control characters are replaced.
    """
    if raw.find(b"\r") >= 0:
        for part in raw.split(b"\r"):
            if part.strip():
                yield cleaned(part)
    else:
        yield cleaned(raw)


def cleaned(raw: bytes) -> str:
    """Text without escape sequences and control characters, at most LONGEST characters of it."""
    text = raw[: 2 * LONGEST].decode("utf-8", "replace")
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    return _UNSHOWN.sub("\ufffd", text).rstrip()[:LONGEST]
