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
_WORDS = (
    "token|secret|secrets|password|passwd|passphrase|pwd|apikey|credential|credentials|auth|authorization|"
    "bearer|cookie|private|signature|pat"
)
#: Names with one of those words that are no secret.
_HARMLESS = lazy_pattern(
    r"^(PWD|OLDPWD)$|(^|[_-])((pad|eos|bos|unk|sep|cls|mask|special|max|min|num|per|image|video|audio|new)[_-]"
    r"tokens?|token[_-](id|ids|count|dim|dropout|embedding|type|length|size|budget|limit))([_-]|$)"
    r"|munge|auth[_-]?type|(^|[_-])tokens$",
    re.IGNORECASE,
)
_SECRET = lazy_pattern(
    rf"(^|[_-])({_WORDS})([_-]|$)|(^|[_-])(api|access|secret|private|ssh|license|account|storage|wandb|encryption)"
    r"[_-]?key([_-]|$)|(^|[_-])key$",
    re.IGNORECASE,
)
_NAME = lazy_pattern(r"(?<![\w-])(?P<name>-{0,2}[A-Za-z_][\w-]*)(?P<sign>=|:[ \t]*|[ \t]+)")
_VALUE = lazy_pattern(r"\"[^\"]*\"?|'[^']*'?|[^\s\"';&|)]+")
# Lengths are bounded, so that hostile text cannot make one search quadratic.
_IN_ADDRESS = lazy_pattern(
    r"(?<![A-Za-z0-9+.-])(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,30}://)[^\s/@:]{1,200}:[^\s/@]{1,500}@"
)
_KNOWN_FORMS = lazy_pattern(
    r"\b(hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|AKIA[A-Z0-9]{12,}"
    r"|glpat-[\w-]{16,}|xox[abprs]-[\w-]{10,}|eyJ[\w-]{10,300}\.[\w-]{10,2000}\.[\w-]{1,2000})"
)


@functools.lru_cache(maxsize=4096)
def is_secret(name: str) -> bool:
    """Whether a variable or option of this name looks as if it held a secret."""
    bare = name.lstrip("-")[:200]
    return bool(_SECRET.search(bare)) and not _HARMLESS.search(bare)


def redact(name: str, text: str) -> str:
    """`text`, the value of `name`, or asterisks when the name is that of a secret."""
    return HIDDEN if text and is_secret(name) else scrub(text)


@functools.lru_cache(maxsize=8192)
def scrub(text: str) -> str:
    """`text` with what looks like a secret hidden: `TOKEN=...`, `--api-key ...`, `https://user:pass@host`."""
    if not text:
        return text
    text = _KNOWN_FORMS.sub(HIDDEN, _IN_ADDRESS.sub(rf"\g<scheme>{HIDDEN}@", text))
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
