"""Structured mutations for inputs of which random bytes would mostly give nonsense: words, lines, JSON values, files.

A mutation depends only on its dice: the same dice give the same input in the fuzzer and in tests.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from tests.fuzz import folder
from tests.fuzz.words import ODD

#: Takes an input, the dice and the words of its format; returns another input.
Mutator = Callable[[bytes, random.Random, Sequence[str]], bytes]

#: The largest input: several mutations in a row would each multiply its size.
_MAX_BYTES = 256 * 1024
_MANY = (2, 8, 64, 500, 3000)
_VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        3,
        0.5,
        -0.0,
        1e308,
        2**31,
        2**63,
        2**64,
        10**25,
        10**400,
        "",
        "x",
        "nan",
        "-1",
        "1e9",
    ),
    *([], {}, [[]], {"": {}}, [None] * 40, "a" * 5000, "node1", "\x1b[2J\u202e", "<script>", "::error::x", "\ud800"),
)


def text(data: bytes, dice: random.Random, words: Sequence[str]) -> bytes:
    """Cut, move or repeat pieces, or replace them by a word or by broken syntax."""
    found = data
    for _ in range(dice.choice((1, 1, 1, 2, 3, 5))):
        found = dice.choice(_OF_TEXT)(found, dice, words)[:_MAX_BYTES]
    return found


def _place(data: bytes, dice: random.Random) -> tuple[int, int]:
    """Two positions, usually close to each other."""
    start = dice.randrange(len(data) + 1)
    return start, min(len(data), start + dice.choice((0, 1, 2, 5, 20, 80, 400)))


def _cut(data: bytes, dice: random.Random, words: Sequence[str]) -> bytes:
    start, end = _place(data, dice)
    return data[:start] + data[end:]


def _word(data: bytes, dice: random.Random, words: Sequence[str]) -> bytes:
    start, end = _place(data, dice)
    new = dice.choice(words) if words and dice.random() < 0.7 else dice.choice(ODD)
    return data[:start] + new.encode("utf-8", "replace") + data[end if dice.random() < 0.3 else start :]


def _swapped(data: bytes, dice: random.Random, words: Sequence[str]) -> bytes:
    lines = data.split(b"\n")
    one, other = dice.randrange(len(lines)), dice.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]
    return b"\n".join(lines)


def _line_again(data: bytes, dice: random.Random, words: Sequence[str]) -> bytes:
    lines = data.split(b"\n")
    lines.insert(dice.randrange(len(lines) + 1), dice.choice(lines))
    return b"\n".join(lines)


def _piece_again(data: bytes, dice: random.Random, words: Sequence[str]) -> bytes:
    start, end = _place(data, dice)
    at = dice.randrange(len(data) + 1)
    return data[:at] + data[start:end] + data[at:]


def _often(data: bytes, dice: random.Random, words: Sequence[str]) -> bytes:
    """Repeat a line or a few characters very often, which exposes quadratic readers."""
    if dice.random() < 0.5:
        lines = data.split(b"\n")
        at = dice.randrange(len(lines))
        return b"\n".join((*lines[:at], *[lines[at]] * dice.choice(_MANY), *lines[at + 1 :]))
    start, end = _place(data, dice)
    return data[:start] + data[start:end] * dice.choice(_MANY) + data[end:]


def _numbered(data: bytes, dice: random.Random, words: Sequence[str]) -> bytes:
    """Repeat a line with a number in each copy, so that every copy has another name."""
    lines = data.split(b"\n")
    at = dice.randrange(len(lines))
    line = lines[at]
    place = dice.randrange(len(line) + 1)
    copies = [line[:place] + str(number).encode() + line[place:] for number in range(dice.choice(_MANY[:4]))]
    return b"\n".join((*lines[:at], *copies, *lines[at + 1 :]))


def _nested(data: bytes, dice: random.Random, words: Sequence[str]) -> bytes:
    opened, closed = dice.choice(
        ((b"[", b"]"), (b"{", b"}"), (b"(", b")"), (b"$(", b")"), (b"${a:-", b"}"), (b"`", b"`"))
    )
    start, end = _place(data, dice)
    depth = dice.choice(_MANY)
    return data[:start] + opened * depth + data[start:end] + closed * dice.choice((depth, depth, 0)) + data[end:]


def _byte(data: bytes, dice: random.Random, words: Sequence[str]) -> bytes:
    at = dice.randrange(len(data) + 1)
    return data[:at] + bytes((dice.randrange(256),)) + data[at + dice.randrange(2) :]


_OF_TEXT: tuple[Mutator, ...] = (
    *(_cut, _word, _word, _word, _swapped, _line_again, _piece_again, _often, _numbered, _nested, _byte),
)


def files(data: bytes, dice: random.Random, words: Sequence[str]) -> bytes:
    """Change, rename, copy or remove one file of a folder, or join or exchange two."""
    found = folder.unpacked(data)
    if not found:
        return text(data, dice, words)
    path = dice.choice(sorted(found))
    chance = dice.random()
    if chance < 0.75:
        found[path] = text(found[path], dice, words)
    elif chance < 0.8 and len(found) > 1:
        del found[path]
    elif chance < 0.85:
        name = path.rsplit("/", 1)[-1]
        new = dice.choice(
            (f"sub/{name}", f"{name}2.sh", f"2{name}", name + ".yaml", "a/b/c/" + name, "Dockerfile", "hostfile")
        )
        found[new] = found[path] if dice.random() < 0.5 else found.pop(path)
    elif chance < 0.93:
        other = dice.choice(sorted(found))
        found[path], found[other] = found[other], found[path]
    else:
        found[path] += found[dice.choice(sorted(found))]
    return folder.packed(found)


def document(data: bytes, dice: random.Random, words: Sequence[str]) -> bytes:
    """Replace, remove or repeat a value in a JSON document; the rest stays valid."""
    try:
        whole = json.loads(data)
    except (ValueError, RecursionError):
        return text(data, dice, words)
    for _ in range(dice.choice((1, 1, 2, 3))):
        whole = _of_value(whole, dice, words)
    try:
        return json.dumps(whole, ensure_ascii=dice.random() < 0.5).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):
        return data


def _of_value(whole: Any, dice: random.Random, words: Sequence[str]) -> Any:
    """Descend at random; each level is as likely to be changed as all levels below it."""
    if isinstance(whole, dict) and whole and dice.random() < 0.85:
        key = dice.choice(sorted(whole))
        chance = dice.random()
        if chance < 0.06:
            return {name: value for name, value in whole.items() if name != key}
        if chance < 0.12:
            return {**whole, dice.choice(words) if words else "x": whole[key]}
        return {**whole, key: _of_value(whole[key], dice, words)}
    if isinstance(whole, list) and whole and dice.random() < 0.85:
        at = dice.randrange(len(whole))
        chance = dice.random()
        if chance < 0.06:
            return whole[:at] + whole[at + 1 :]
        if chance < 0.12:
            return whole + [whole[at]] * dice.choice((1, 3, 200))
        return [*whole[:at], _of_value(whole[at], dice, words), *whole[at + 1 :]]
    if isinstance(whole, str) and dice.random() < 0.5:
        return text(whole.encode("utf-8", "replace"), dice, words).decode("utf-8", "replace")
    if isinstance(whole, int) and not isinstance(whole, bool) and dice.random() < 0.3:
        return whole + dice.choice((-1, 1, 2, 1000, -(2**31)))
    return dice.choice(_VALUES)


def lines(data: bytes, dice: random.Random, words: Sequence[str]) -> bytes:
    """Change one of the lines, each a JSON document; or move, repeat or remove a line."""
    found = data.split(b"\n")
    if dice.random() < 0.3:
        return dice.choice((_swapped, _line_again, _often))(data, dice, words)
    at = dice.randrange(len(found))
    found[at] = document(found[at], dice, words) if dice.random() < 0.9 else text(found[at], dice, words)
    return b"\n".join(found)
