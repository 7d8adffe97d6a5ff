"""Files of variables: `.env`, `train.env`, DeepSpeed's `.deepspeed_env`, whatever `--env-file` names.

One `NAME=value` a line, with or without `export` and quotes; a value that names another variable is not known.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from preflight.job import WHOLE_JOB, Claim, Known, Note, NoteKind, Scope, Span, Strength, Unresolved, Value
from preflight.job.span import LONGEST_SNIPPET
from preflight.lazy.patterns import lazy_pattern
from preflight.redact import HIDDEN, is_secret
from preflight.sources.base import Reading, SourceFile, Tree
from preflight.sources.comments import suppressions

_NAMED = lazy_pattern(r"(?:.*\.)?env(?:\.[\w-]+)?|\.deepspeed_env|env\.list", re.IGNORECASE)
_LINE = lazy_pattern(r"\s*(?:export\s+)?(?P<name>[A-Za-z_]\w*)\s*=\s*(?P<value>.*)$")
#: Variables by which a file shows that it is one of a distributed job; any other `.env` is a web application's.
_OF_RANKS = lazy_pattern(
    r"^\s*(?:export\s+)?(?:(?:NCCL|GLOO|UCX|FI|RCCL|TORCH_NCCL|OMPI_MCA|HOROVOD|PET|PADDLE|SLURM)_\w+"
    r"|MASTER_ADDR|MASTER_PORT|WORLD_SIZE|NODE_RANK|NNODES|NPROC_PER_NODE)\s*=",
    re.MULTILINE,
)
_OTHER_SUFFIXES = (".py", ".sh", ".md", ".json", ".yaml", ".yml", ".ts", ".js", ".example", ".sample", ".template")
_MOST_VARIABLES = 500
#: Longer lines are no one's, and could make reading them slow.
_LONGEST_LINE = 8192


class DotenvSource:
    """Reads one file of variables."""

    name = "dotenv"
    roles = ("environment",)

    def recognises(self, file: SourceFile) -> bool:
        """Whether it is named like one and sets a variable that ranks read."""
        name = posixpath.basename(file.path).lower()
        if name.endswith(_OTHER_SUFFIXES) or not _NAMED.fullmatch(name):
            return False
        return _OF_RANKS.search(file.text[:20000]) is not None

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """State every variable, in the scope of the launch that the file is given to."""
        notes: list[Note] = []
        claims: dict[str, Claim] = {}
        for claim in _claims(file, scope, notes):
            claims[claim.quantity] = claim
            if len(claims) >= _MOST_VARIABLES:
                break
        return Reading(claims=tuple(claims.values()), notes=tuple(notes[:20]), suppressions=suppressions(file))


def _claims(file: SourceFile, scope: Scope, notes: list[Note]) -> Iterator[Claim]:
    for number, raw in enumerate(file.text.split("\n"), start=1):
        line = raw.rstrip("\r")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if len(line) > _LONGEST_LINE:
            continue
        line = line.rstrip()
        match = _LINE.fullmatch(line)
        snippet = line[:LONGEST_SNIPPET]
        if match is None:
            if "=" not in line and re.fullmatch(r"\s*[A-Za-z_]\w*\s*", line):
                # Docker takes a bare name from the caller's environment.
                continue
            span = Span(file.path, number, 1, number, len(line) + 1, snippet)
            notes.append(Note(NoteKind.UNSUPPORTED, f"{file.path} line {number}: no `NAME=value`", span))
            continue
        span = Span(file.path, number, match.start("name") + 1, number, match.end("value") + 1, snippet)
        name = match["name"]
        value: Value = _value(match["value"])
        spelling = f"{name}={match['value']}"
        if is_secret(name):
            value, spelling = Unresolved("redacted"), f"{name}={HIDDEN}"
            span = Span(file.path, number, span.column, number, span.end_column, spelling)
        yield Claim(f"env.{name}", value, span, spelling, "environment", scope, Strength.ENVIRONMENT)


def _value(written: str) -> Value:
    quoted = re.fullmatch(r"(['\"])(.*)\1(?:\s+#.*)?", written)
    text = quoted[2] if quoted is not None else re.sub(r"\s+#.*$", "", written)
    if "$" in text and not (quoted is not None and quoted[1] == "'"):
        return Unresolved(f"{text} names a variable of the caller")
    if "{{" in text or re.fullmatch(r"<.*>", text):
        return Unresolved(f"`{text}`, which is to be filled in")
    return Known(text)
