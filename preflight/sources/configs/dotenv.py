"""Files of variables: `.env`, `train.env`, DeepSpeed's `.deepspeed_env`, any file passed to `--env-file`, `nccl.conf`.

One `NAME=value` per line, with or without `export` and quotes; a value that refers to another variable is unknown. NCCL
sets from its own file (NCCL_CONF_FILE, `/etc/nccl.conf`) what the environment does not have, and takes values literally
(src/misc/param.cc, NCCL 2.27).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from preflight._util.budget import note_skipped
from preflight._util.redaction import HIDDEN
from preflight._util.secret_names import is_secret
from preflight._util.spans import MAX_SNIPPET_LENGTH
from preflight.model.job import WHOLE_JOB, Claim, Known, Note, NoteKind, Scope, Span, Strength, Unresolved, Value
from preflight.sources.base import Reading, SourceFile, Tree, Variable
from preflight.sources.formats.comments import suppressions

_FILE_NAMES = re.compile(r"(?:.*\.)?env(?:\.[\w-]+)?|\.deepspeed_env|env\.list", re.IGNORECASE)
_NCCL = re.compile(r"(?:.*[-_.])?nccl(?:[-_.][\w-]+)?\.conf", re.IGNORECASE)
_LINE = re.compile(r"\s*(?:export\s+)?(?P<name>[A-Za-z_]\w*)\s*=\s*(?P<value>.*)$")
_REFERENCE = re.compile(r"\$\{?([A-Za-z_]\w{0,99})")
#: Variables that identify the file of a distributed job; any other `.env` belongs to a web application.
_RANK_VARIABLES = re.compile(
    r"^[ \t]*(?:export[ \t]+)?(?:(?:NCCL|GLOO|UCX|FI|RCCL|TORCH_NCCL|OMPI_MCA|HOROVOD|PET|PADDLE|SLURM)_\w+"
    r"|MASTER_ADDR|MASTER_PORT|WORLD_SIZE|NODE_RANK|NNODES|NPROC_PER_NODE)\s*=",
    re.MULTILINE,
)
_OTHER_SUFFIXES = (".py", ".sh", ".md", ".json", ".yaml", ".yml", ".ts", ".js", ".example", ".sample", ".template")
_MAX_VARIABLES = 500
#: Longer lines could make reading slow; real files have shorter ones.
_MAX_LINE_LENGTH = 8192


class DotenvSource:
    """Reads one file of variables."""

    name = "dotenv"
    roles = ("environment",)

    def recognises(self, file: SourceFile) -> bool:
        """Whether its name is that of such a file, and it sets a variable that ranks read."""
        name = posixpath.basename(file.path).lower()
        if not _NCCL.fullmatch(name) and (name.endswith(_OTHER_SUFFIXES) or not _FILE_NAMES.fullmatch(name)):
            return False
        return _RANK_VARIABLES.search(file.text[:20000]) is not None

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """State every variable, in the scope of the launch that is given the file."""
        notes: list[Note] = []
        claims: dict[str, Claim] = {}
        for claim in _claims(file, scope, notes):
            claims[claim.quantity] = claim
            if len(claims) >= _MAX_VARIABLES:
                note_skipped(f"only the first {_MAX_VARIABLES} variables were read")
                break
        return Reading(claims=tuple(claims.values()), notes=tuple(notes[:20]), suppressions=suppressions(file))


def variables_in(file: SourceFile) -> tuple[Variable, ...]:
    """The variables that a file sets, the last value of each; a secret has no value."""
    found = {
        claim.quantity: Variable(claim.quantity.removeprefix("env."), claim.value, claim.span, claim.spelling)
        for claim in _claims(file, WHOLE_JOB, [])
    }
    return tuple(found.values())[:_MAX_VARIABLES]


def _claims(file: SourceFile, scope: Scope, notes: list[Note]) -> Iterator[Claim]:
    nccl = _NCCL.fullmatch(posixpath.basename(file.path)) is not None
    strength = Strength.CONFIG if nccl else Strength.ENVIRONMENT
    for number, raw in enumerate(file.text.split("\n"), start=1):
        line = raw.rstrip("\r")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if len(line) > _MAX_LINE_LENGTH:
            note_skipped(f"line {number} is longer than {_MAX_LINE_LENGTH} characters and was not read")
            continue
        line = line.rstrip()
        match = _LINE.fullmatch(line)
        snippet = line[:MAX_SNIPPET_LENGTH]
        if match is None:
            if "=" not in line and re.fullmatch(r"\s*[A-Za-z_]\w*\s*", line):
                # Docker takes a bare name from the caller's environment.
                continue
            span = Span(file.path, number, 1, number, len(line) + 1, snippet)
            notes.append(Note(NoteKind.UNSUPPORTED, f"{file.path} line {number}: not of the form `NAME=value`", span))
            continue
        span = Span(file.path, number, match.start("name") + 1, number, match.end("value") + 1, snippet)
        name = match["name"]
        value: Value = Known(match["value"]) if nccl else _value(match["value"])
        spelling = f"{name}={match['value']}"
        if is_secret(name):
            value, spelling = Unresolved("redacted"), f"{name}={HIDDEN}"
            span = Span(file.path, number, span.column, number, span.end_column, spelling)
        yield Claim(f"env.{name}", value, span, spelling, "environment", scope, strength)


def _value(written: str) -> Value:
    quoted = re.fullmatch(r"(['\"])(.*)\1(?:\s+#.*)?", written)
    text = quoted[2] if quoted is not None else re.sub(r"\s+#.*$", "", written)
    if "$" in text and not (quoted is not None and quoted[1] == "'"):
        return Unresolved(f"{text} refers to a variable of the caller", tuple(_REFERENCE.findall(text)))
    if "{{" in text or re.fullmatch(r"<.*>", text):
        return Unresolved(f"`{text}`, which must be replaced")
    return Known(text)
