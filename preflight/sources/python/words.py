"""The lists of `words.toml`, whose comments say what they are for."""

from __future__ import annotations

from preflight._util import toml

_LISTS = toml.beside(__file__, "words.toml")
#: Names by option, as their quantity.
OPTIONS: dict[str, list[str]] = _LISTS["options"]
WORDS: dict[str, tuple[str, ...]] = {key: tuple(item) for key, item in _LISTS.items() if key != "options"}
