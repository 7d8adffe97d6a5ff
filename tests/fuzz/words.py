"""Dictionaries: words that a reader looks for, from its tables and from the seeds of its target."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable

from preflight.model.job.value import QUANTITIES
from preflight.sources.tables import FOLDER, load_table

_MAX_WORDS = 600
_WORD = re.compile(rb"[A-Za-z_$#@%{}\[\]()<>./:=*&|\"'-][\w$#@%{}()<>./:=*&|-]{1,30}")
#: Words that break syntax, numbers or names in any format.
ODD = (
    *("${", "$(", "`", "$((", "))", "}", "<<EOF", "<<<", "\\\n", "\x00", "\r\n", "\t", "\ufeff", "\u2028", "\x1b[2J"),
    *("&a", "*a", "<<: *a", "{{ x }}", "- ", "? ", ": ", "|2", "!!python/object", "%YAML 1.1", "---\n", "...\n"),
    *(
        "0",
        "-1",
        "1e309",
        "nan",
        "0x10",
        "9" * 30,
        "1_000",
        "007",
        "2147483648",
        "18446744073709551616",
        "1" * 400,
        "7" * 4400,
        "²",
        "٣",
    ),
    *("node[1-9]", "node[1-99999999]", "[0-9,[1-2]]", "a/../..", "/dev/null", "~", "\\", '"', "'", "'''", '"""'),
    *("::error::x", "<script>", "&lt;", "](x)", "|", "\ud7ff", "🚀", "é", "e\u0301"),
)


@functools.cache
def options() -> tuple[str, ...]:
    """Every option of every launcher, and every key of every configuration, that a table of ours names."""
    found: dict[str, None] = {}
    for path in sorted(FOLDER.glob("*.json")):
        if path.stem != "custom_resources":
            for row in load_table(path.stem).rows:
                found.update(dict.fromkeys((*row.spellings[:2], row.dest, *map(str, row.choices[:4]))))
    return tuple(found)


def quantities() -> tuple[str, ...]:
    """The name of every quantity."""
    return tuple(QUANTITIES)


def of_seeds(seeds: Iterable[bytes]) -> tuple[str, ...]:
    """The most frequent words of the seeds."""
    counts: Counter[bytes] = Counter()
    for seed in seeds:
        counts.update(set(_WORD.findall(seed)))
    common = sorted(counts, key=lambda word: (-counts[word], word))[:_MAX_WORDS]
    return tuple(word.decode("utf-8", "replace") for word in common)


def dictionary(words: Iterable[str]) -> str:
    """The words in libFuzzer's format."""
    lines = []
    for word in dict.fromkeys(words):
        data = word.encode("utf-8", "replace")
        if 1 < len(data) <= 64:
            escaped = "".join(chr(b) if 32 < b < 127 and b not in b'"\\' else f"\\x{b:02x}" for b in data)
            lines.append(f'"{escaped}"')
    return "\n".join(dict.fromkeys(lines)) + "\n"
