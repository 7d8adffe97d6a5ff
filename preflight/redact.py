"""Keeping secrets out of everything that is stored or printed.

Launch scripts hold API keys next to node counts, so each text taken from them passes here first. Names decide,
not values: a name that looks like that of a secret has its value replaced, wherever it stands.
"""

from __future__ import annotations

import functools
import re

from preflight.lazy.patterns import lazy_pattern

#: What stands in the place of a secret.
HIDDEN = "****"
#: Words that make a name that of a secret, whole parts of it only: `HF_TOKEN`, not `TOKENIZER_PATH`.
_WORDS = frozenset(
    (
        *("token", "secret", "secrets", "password", "passwd", "passphrase", "pwd", "apikey", "credential"),
        *("credentials", "auth", "authorization", "bearer", "cookie", "private", "signature", "pat"),
    )
)
#: Words that make a key a secret one: `API_KEY`, `SSHKEY`.
_LOCKED = frozenset(
    ["api", "access", "secret", "private", "ssh", "license", "account", "storage", "wandb", "encryption"]
)
_WORKING_DIRECTORIES = ("pwd", "oldpwd")
#: Names with one of those words that are no secret.
_HARMLESS = lazy_pattern(
    r"(^|[_-])((pad|eos|bos|unk|sep|cls|mask|special|max|min|num|per|image|video|audio|new)[_-]"
    r"tokens?|token[_-](id|ids|count|dim|dropout|embedding|type|length|size|budget|limit))([_-]|$)"
    r"|munge|auth[_-]?type|(^|[_-])tokens$",
    re.IGNORECASE,
)
_NAME = lazy_pattern(r"(?<![\w-])(?P<name>-{0,2}[A-Za-z_][\w-]*)(?P<sign>=|:[ \t]*|[ \t]+)")
_VALUE = lazy_pattern(r"\"[^\"]*\"?|'[^']*'?|[^\s\"';&|)]+")
# Lengths are bounded, so that hostile text cannot make one search quadratic.
_IN_ADDRESS = lazy_pattern(
    r"(?<![A-Za-z0-9+.-])(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,30}://)[^\s/@:]{1,200}:[^\s/@]{1,500}@"
)
#: How these begin, which is quicker to look for: most texts hold none, and where none does no pattern is made.
_BEGINNINGS = ("hf_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "sk-", "AKIA", "glpat-", "xox", "eyJ")
_KNOWN_FORMS = lazy_pattern(
    r"\b(hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|AKIA[A-Z0-9]{12,}"
    r"|glpat-[\w-]{16,}|xox[abprs]-[\w-]{10,}|eyJ[\w-]{10,300}\.[\w-]{10,2000}\.[\w-]{1,2000})"
)


@functools.lru_cache(maxsize=4096)
def is_secret(name: str) -> bool:
    """Whether a variable or option of this name looks as if it held a secret."""
    bare = name.lstrip("-")[:200].casefold()
    words = bare.replace("-", "_").split("_")
    suspicious = (
        words[-1] == "key"
        or not _WORDS.isdisjoint(words)
        or any(word.endswith("key") and word[:-3] in _LOCKED for word in words)
        or any(word == "key" and words[before] in _LOCKED for before, word in enumerate(words[1:]))
    )
    return suspicious and bare not in _WORKING_DIRECTORIES and not _HARMLESS.search(bare)


def redact(name: str, text: str) -> str:
    """`text`, the value of `name`, or asterisks when the name is that of a secret."""
    return HIDDEN if text and is_secret(name) else scrub(text)


@functools.lru_cache(maxsize=8192)
def scrub(text: str) -> str:
    """`text` with what looks like a secret hidden: `TOKEN=...`, `--api-key ...`, `https://user:pass@host`."""
    if not text:
        return text
    if "://" in text:
        text = _IN_ADDRESS.sub(rf"\g<scheme>{HIDDEN}@", text)
    if any(beginning in text for beginning in _BEGINNINGS):
        text = _KNOWN_FORMS.sub(HIDDEN, text)
    pieces: list[str] = []
    done = at = 0
    while (match := _NAME.search(text, at)) is not None:
        at = match.end()
        # `export TOKEN` followed by a word is no assignment; `--token word` is one.
        assigned = match["sign"].strip() or match["name"].startswith("-")
        if not assigned or not is_secret(match["name"]):
            continue
        value = _VALUE.match(text, at)
        if value is None or value[0].lstrip("\"'").startswith("$"):
            continue
        pieces += (text[done:at], HIDDEN)
        done = at = value.end()
    return "".join((*pieces, text[done:]))
