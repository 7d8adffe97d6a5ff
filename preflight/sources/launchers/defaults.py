"""A launcher that comes from outside, or from its default: `${LAUNCHER:-torchrun --nproc_per_node=8} train.py`.

Counts of that form stay unresolved, because they are meant to be given; the launcher is read as its default, because
otherwise nothing of the line could be.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Callable, Sequence

from preflight.job import Known, Unresolved, Value
from preflight.lazy.patterns import lazy_pattern
from preflight.sources.base import Word

#: How the shell reader says it (preflight/sources/shell/parameters.py).
_DEFAULT = lazy_pattern(r"\$\w+ from outside, default (.+)", re.DOTALL)
#: A launcher stands among these first words, behind srun and its options.
_FARTHEST = 30


def with_default(words: Sequence[Word], is_launcher: Callable[[str], bool]) -> tuple[Word, ...]:
    """The words, the first one that may be a launcher from outside replaced by the words of its default."""
    for index, word in enumerate(words[:_FARTHEST]):
        found = _DEFAULT.fullmatch(word.value.why) if isinstance(word.value, Unresolved) else None
        if found is None:
            continue
        try:
            pieces = shlex.split(found[1])
        except ValueError:
            continue
        if pieces and is_launcher(posixpath.basename(pieces[0])):
            return (*words[:index], *(_word(piece, word) for piece in pieces), *words[index + 1 :])
    return tuple(words)


def _word(text: str, whole: Word) -> Word:
    value: Value = Unresolved(f"{text} in the default of {whole.spelling}") if "$" in text else Known(text)
    return Word(value, whole.span, text)
