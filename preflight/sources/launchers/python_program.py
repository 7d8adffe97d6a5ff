"""Finds the program that a `python` command line starts."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from typing import NamedTuple

from preflight.sources.base import Word
from preflight.sources.launchers.option_parser import known_prefix, text_of

_PYTHON = re.compile(r"(python|pypy)[\d.]*")
#: `python` options that take a word; source: `python --help` of CPython 3.8 to 3.14.
_VALUED = ("-W", "-X", "--check-hash-based-pycs")


class PythonProgram(NamedTuple):
    """The script or module that `python ...` runs: `words[0]`, followed by its arguments."""

    interpreter: Word
    words: tuple[Word, ...]
    module: bool


def is_python(words: Sequence[Word]) -> bool:
    """Whether the first word is a Python interpreter, judging by its name, or because a script or `-m` follows it."""
    if not words:
        return False
    text = text_of(words[0])
    if text is not None:
        return _PYTHON.fullmatch(posixpath.basename(text)) is not None or _is_called_like_python(words)
    if _PYTHON.fullmatch(posixpath.basename(known_prefix(words[0]))):
        return True
    if "py" not in words[0].spelling.lower() or len(words) < 2:
        return False
    following = text_of(words[1]) or ""
    return following in ("-m", "-u") or following.endswith(".py")


def _is_called_like_python(words: Sequence[Word]) -> bool:
    """Whether a command with another name is called as only an interpreter is: `fluid -u train.py`."""
    if len(words) < 3 or "." in (text_of(words[0]) or ""):
        return False
    return text_of(words[1]) == "-u" and (text_of(words[2]) or "").endswith(".py")


def python_program(words: Sequence[Word]) -> PythonProgram | None:
    """The script or module after `python [options]`; None for `python -c`, `python -V` and an interactive session."""
    index = 1
    while index < len(words):
        word = words[index]
        text = text_of(word)
        if text is None:
            if known_prefix(word).startswith("-") or (
                word.many and index + 1 < len(words) and _program_follows(words[index + 1 : index + 100])
            ):
                index += 1
                continue
            return PythonProgram(words[0], tuple(words[index:]), False)
        if text == "-m":
            rest = tuple(words[index + 1 :])
            return PythonProgram(words[0], rest, True) if rest else None
        if text.startswith("-m") and not text.startswith("--"):
            return None
        if text in ("-c", "-V", "--version", "-h", "--help", "-") or re.fullmatch(r"-[a-zA-Z]*c", text):
            return None
        if text in _VALUED:
            index += 2
            continue
        if text.startswith("-"):
            if re.fullmatch(r"-[bBdEhiIOPqsSuvxR]+m", text):
                rest = tuple(words[index + 1 :])
                return PythonProgram(words[0], rest, True) if rest else None
            index += 1
            continue
        return PythonProgram(words[0], tuple(words[index:]), False)
    return None


def _program_follows(words: Sequence[Word]) -> bool:
    """Whether a script or `-m` follows, so that the words before it are options."""
    return any((text_of(word) or "").endswith(".py") or text_of(word) == "-m" for word in words)
