"""The lists of `words.toml`, whose comments say what they are for."""

from __future__ import annotations

from pathlib import Path

from preflight._util import toml

_LISTS = toml.load(Path(__file__).with_name("words.toml"))
#: Names by option, as their quantity.
OPTIONS: dict[str, list[str]] = _LISTS.pop("options")
WORDS: dict[str, tuple[str, ...]] = toml.with_tuples(_LISTS)
