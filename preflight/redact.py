"""Keeping secrets out of everything that is stored or printed.

Launch scripts hold API keys next to node counts, so each text taken from them passes here first. Names decide,
not values: a name that looks like that of a secret has its value replaced, wherever it stands.
"""

from __future__ import annotations

import re

#: What stands in the place of a secret.
HIDDEN = "****"
#: Words that make a name that of a secret, whole parts of it only: `HF_TOKEN`, not `TOKENIZER_PATH`.
_WORDS = (
    "token|secret|secrets|password|passwd|passphrase|pwd|apikey|credential|credentials|auth|authorization|"
    "bearer|cookie|private|signature|pat"
)
#: Names with one of those words that are no secret.
_HARMLESS = re.compile(
    r"^(PWD|OLDPWD)$|(^|[_-])((pad|eos|bos|unk|sep|cls|mask|special|max|min|num|per|image|video|audio|new)[_-]"
    r"tokens?|token[_-](id|ids|count|dim|dropout|embedding|type|length|size|budget|limit))([_-]|$)"
    r"|munge|auth[_-]?type|(^|[_-])tokens$",
    re.IGNORECASE,
)
_SECRET = re.compile(
    rf"(^|[_-])({_WORDS})([_-]|$)|(^|[_-])(api|access|secret|private|ssh|license|account|storage|wandb|encryption)"
    r"[_-]?key([_-]|$)|(^|[_-])key$",
    re.IGNORECASE,
)
_ASSIGNED = re.compile(
    r"(?<![\w-])(?P<name>-{0,2}[A-Za-z_][\w-]*)(?P<sign>=|[ \t]+|:[ \t]*)"
    r"(?P<value>\"[^\"]*\"?|'[^']*'?|[^\s\"';&|)]+)"
)
_IN_ADDRESS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)[^\s/@:]+:[^\s/@]+@")
_KNOWN_FORMS = re.compile(
    r"\b(hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|AKIA[A-Z0-9]{12,}|glpat-[\w-]{16,}"
    r"|xox[abprs]-[\w-]{10,}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]+)"
)


def is_secret(name: str) -> bool:
    """Whether a variable or option of this name looks as if it held a secret."""
    bare = name.lstrip("-")
    return bool(_SECRET.search(bare)) and not _HARMLESS.search(bare)


def redact(name: str, text: str) -> str:
    """`text`, the value of `name`, or asterisks when the name is that of a secret."""
    return HIDDEN if text and is_secret(name) else scrub(text)


def scrub(text: str) -> str:
    """`text` with what looks like a secret in it replaced: `TOKEN=...`, `--api-key ...`, `https://user:pass@host`."""
    if not text:
        return text
    text = _KNOWN_FORMS.sub(HIDDEN, _IN_ADDRESS.sub(rf"\g<scheme>{HIDDEN}@", text))
    return _ASSIGNED.sub(_replacement, text)


def _replacement(match: re.Match[str]) -> str:
    name, sign, value = match["name"], match["sign"], match["value"]
    # `export TOKEN` followed by a word is no assignment; `--token word` is one.
    assigned = sign.strip() or name.startswith("-")
    if not assigned or not is_secret(name) or value.startswith(("$", '"$', "'$")):
        return match[0][: len(name)] + _ASSIGNED.sub(_replacement, match[0][len(name) :])
    return f"{name}{sign}{HIDDEN}"
