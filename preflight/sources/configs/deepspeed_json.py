"""Reads DeepSpeed configuration (`ds_config.json`): batch sizes, ZeRO stage, precision.

A claim's location is the *value* (`64`), its spelling the whole pair (`"train_batch_size": 64`). A value of the wrong
type (`"64"`, 1.5, 0) is claimed as written, so that a rule can judge it; only values that DeepSpeed or a trainer fills
in later (`"auto"`, a placeholder) are unresolved.
"""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Iterator

from preflight.model.job import WHOLE_JOB, Claim, Note, NoteDetail, NoteKind, Scope, span_of
from preflight.sources.base import Reading, SourceFile, Tree
from preflight.sources.configs.deepspeed_claims import state
from preflight.sources.configs.setting_claims import state_settings
from preflight.sources.formats.comments import suppressions
from preflight.sources.formats.lenient_json import parse
from preflight.sources.formats.structured import Fault, Kind, Node, NodeClaims

#: More faults from one file add no information.
MAX_NOTES = 20

_OWN_KEYS = ("train_micro_batch_size_per_gpu", "zero_optimization", "zero_allow_untested_optimizer")
_SHARED_KEYS = (
    "train_batch_size",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "steps_per_print",
    "wall_clock_breakdown",
    "optimizer",
    "fp16",
    "bf16",
)
_NAMED = re.compile(r"(?:.*[._-])?(?:ds|deepspeed|zero\d?)(?:[._-].*)?|.*deepspeed.*", re.IGNORECASE)


class DeepSpeedSource:
    """Reads one DeepSpeed configuration file."""

    name = "deepspeed"
    roles = ("config",)

    def recognises(self, file: SourceFile) -> bool:
        """Whether this is JSON with keys that only DeepSpeed has, or with shared ones and DeepSpeed's name."""
        name = posixpath.basename(file.path)
        if not name.lower().endswith((".json", ".hjson", ".jsonc")):
            return False
        if any(f'"{key}"' in file.text for key in _OWN_KEYS):
            return True
        shared = sum(1 for key in _SHARED_KEYS if f'"{key}"' in file.text)
        return shared >= 3 or (shared >= 1 and _NAMED.fullmatch(name) is not None)

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """State the configuration's claims; a malformed value gives a located note and does not affect the rest."""
        document = parse(file.text)
        notes = [_note(file, fault) for fault in document.faults[:MAX_NOTES]]
        claims: list[Claim] = []
        if document.root is not None and document.root.kind is Kind.OBJECT:
            notes += itertools.islice(_duplicates(file, document.root), MAX_NOTES)
            node_claims = NodeClaims(file, "deepspeed", scope)
            state(node_claims, document.root)
            state_settings(node_claims, document.root, "deepspeed")
            claims = node_claims.claims
        elif document.root is not None:
            span = span_of(file.path, file.text, document.root.start, document.root.end)
            message = f"{file.path}is not a JSON object: it must start with `{{`; DeepSpeed cannot use it"
            notes.append(Note(NoteKind.MALFORMED, message, span))
        notes.sort(key=lambda note: (note.span.line, note.span.column))
        comments = suppressions(file, signs=("//", "#"))
        return Reading(claims=tuple(claims), notes=tuple(notes), suppressions=comments)


def _note(file: SourceFile, fault: Fault) -> Note:
    span = span_of(file.path, file.text, fault.start, fault.end)
    where = f"{file.path} line {span.line}"
    if fault.template:
        return Note(NoteKind.TEMPLATE, f"{where}: {fault.message}", span)
    message = f"{where}: {fault.message}"
    if fault.hjson:
        message += "; DeepSpeed's own reader accepts it, but json.load (Hugging Face's trainer) fails here"
    return Note(NoteKind.MALFORMED, message, span, detail=NoteDetail.HJSON if fault.hjson else None)


def _duplicates(file: SourceFile, node: Node) -> Iterator[Note]:
    first: dict[str, int] = {}
    for member in node.members:
        if member.key in first:
            span = span_of(file.path, file.text, member.key_start, member.key_end)
            before = file.text.count("\n", 0, first[member.key]) + 1
            message = (
                f'{file.path} line {span.line}: the key "{member.key[:60]}" is already on line'
                f" {before}; DeepSpeed stops with 'Duplicate keys in DeepSpeed config', and"
                " json.load uses this one: remove one of them"
            )
            yield Note(NoteKind.MALFORMED, message, span)
        first[member.key] = member.key_start
        yield from _duplicates(file, member.node)
