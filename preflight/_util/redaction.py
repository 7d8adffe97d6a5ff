"""Keeps secrets out of everything that is stored or printed.

Launch scripts hold API keys next to node counts, so each text from them passes through here first. Three things
identify a secret: the name beside a value (`HF_TOKEN=...`, `"apiToken": "..."`, `--password X`), the position of a word
on a known command line (`mysql -pX`, `curl -u user:X`), and the form of a value (`github_pat_...`, a PEM block, a
password in an address). Entropy alone never does: commit ids and digests look the same.

The module is sent to nodes: Python 3.8 and the standard library.
"""

from __future__ import annotations

import functools
import re

from preflight._util.secret_names import is_plain, is_secret, looks_random
from preflight._util.secret_spans import merge_spans, spans_of_secrets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

#: The text that replaces a secret.
HIDDEN = "****"


def redact(name: str, text: str) -> str:
    """Return `text`, the value of `name`, or asterisks if `name` names a secret."""
    return HIDDEN if text and is_secret(name) else scrub(text)


@functools.lru_cache(maxsize=8192)
def scrub(text: str) -> str:
    """Return `text` with apparent secrets hidden: `TOKEN=...`, `--api-key ...`, `https://user:pass@host`."""
    if not text:
        return text
    spans = spans_of_secrets(text)
    if not spans:
        return text
    spans = merge_spans([*spans, *_repeated_secrets(text, spans)])
    pieces: list[str] = []
    done = 0
    for start, end in spans:
        pieces += (text[done:start], HIDDEN)
        done = end
    return "".join((*pieces, text[done:]))


def _repeated_secrets(text: str, spans: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield other occurrences of a text's secrets: `+ echo X` after `export TOKEN=X`."""
    found = {piece for start, end in spans[:_MAX_REPEATED] for piece in secret_pieces(text[start:end])}
    for piece in sorted(filter(looks_random, found))[:_MAX_REPEATED]:
        at = text.find(piece)
        while at >= 0:
            yield at, at + len(piece)
            at = text.find(piece, at + len(piece))


#: Largest number of secrets: the whole text is searched once for each.
_MAX_REPEATED = 50
#: A shorter value is a word such as `on` or `none`, which occurs everywhere.
MIN_LENGTH = 6
_PIECE = re.compile(r"(?:\\{1,3}[rnt]|[\s\"'])+")


def secret_pieces(value: str) -> Iterator[str]:
    """Yield the pieces of a secret's value to hide in other text; none if the value is an ordinary word."""
    for whole in (value.strip().strip("\"'"), *_PIECE.split(value)):
        if len(whole) < MIN_LENGTH or is_plain("token", whole):
            continue
        # A lower-case word or a number has other meanings elsewhere.
        if whole.isdecimal() or (
            whole.replace("_", "").replace("-", "").isalpha() and whole.islower() and len(whole) < 12
        ):
            continue
        yield whole


def secrets_in(text: str) -> frozenset[str]:
    """Return the secrets in `text`, each split by `secret_pieces`."""
    found = (text[start:end] for start, end in spans_of_secrets(text))
    # The pieces of a template, `f"{name}.weight"`, have other meanings elsewhere.
    return frozenset(piece for value in found if not ("{" in value and "}" in value) for piece in secret_pieces(value))


#: The value of a key such as `tiktoken` or `google-auth` in a table of packages.
_VERSION = re.compile(r"v?\d{1,6}(?:\.\d{1,8}){1,4}(?:[.+-]?(?:a|b|rc|post|dev|cu|git|nv|rocm)[\w.]{0,30})?\Z")


def redact_tree(value: Any) -> Any:
    """Return JSON data with secrets hidden: by key, by the `name` beside a `value`, and in every string."""
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, dict):
        named = value.get("name")
        pair = isinstance(named, str) and isinstance(value.get("value"), str) and is_secret(named)
        return {
            key: HIDDEN
            if isinstance(item, str)
            and ((pair and key == "value") or (isinstance(key, str) and is_secret(key)))
            and not is_plain(str(key), item)
            and not _VERSION.match(item)
            else redact_tree(item)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [redact_tree(item) for item in value]
    return value


#: The latest secrets of the files that this process has read, to redact the output of a bug.
_known_secrets: dict[str, None] = {}
_MAX_KNOWN = 2000


def remember(secrets: Iterable[str]) -> None:
    """Remember strings that must not appear in a traceback; if there are too many, forget the oldest."""
    for secret in secrets:
        _known_secrets.pop(secret, None)
        _known_secrets[secret] = None
    if len(_known_secrets) > _MAX_KNOWN:
        for oldest in list(_known_secrets)[: len(_known_secrets) - _MAX_KNOWN]:
            _known_secrets.pop(oldest, None)


def scrub_traceback(text: str) -> str:
    """Format the traceback of a bug, without the secrets of any file that was read."""
    return hide_secrets(text, sorted(_known_secrets, key=len, reverse=True))


def hide_secrets(text: str, secrets: Iterable[str]) -> str:
    """Return `text` with each of these secrets hidden, longest first, and other apparent secrets too."""
    for secret in secrets:
        if secret in text:
            text = text.replace(secret, HIDDEN)
    return scrub(text)
