"""Reads DeepSpeed configuration (`ds_config.json`): batch sizes, ZeRO stage, precision.

A claim's place is the *value* (`64`), its spelling the whole pair (`"train_batch_size": 64`). A value of the
wrong type (`"64"`, 1.5, 0) is claimed as it stands, so a rule can judge it; only what DeepSpeed or a trainer
fills in later (`"auto"`, a placeholder) is unresolved.
"""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Iterator

from preflight.job import (
    WHOLE_JOB,
    Claim,
    Note,
    NoteKind,
    Scope,
    span_of,
)
from preflight.lazy.patterns import lazy_pattern
from preflight.sources.base import Reading, SourceFile, Tree
from preflight.sources.comments import suppressions
from preflight.sources.deepspeed_claims import state
from preflight.sources.lenient_json import parse
from preflight.sources.structured import Fault, Kind, Node, NodeStating

#: More faults of one file tell a reader nothing new.
MOST_NOTES = 20

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
_NAMED = lazy_pattern(r"(?:.*[._-])?(?:ds|deepspeed|zero\d?)(?:[._-].*)?|.*deepspeed.*", re.IGNORECASE)


class DeepSpeedSource:
    """Reads one DeepSpeed configuration file."""

    name = "deepspeed"
    roles = ("config",)

    def recognises(self, file: SourceFile) -> bool:
        """Whether this is JSON with keys that only DeepSpeed has, or shared ones and DeepSpeed's name."""
        name = posixpath.basename(file.path)
        if not name.lower().endswith((".json", ".hjson", ".jsonc")):
            return False
        if any(f'"{key}"' in file.text for key in _OWN_KEYS):
            return True
        shared = sum(1 for key in _SHARED_KEYS if f'"{key}"' in file.text)
        return shared >= 3 or (shared >= 1 and _NAMED.fullmatch(name) is not None)

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """State the configuration's claims; malformed places give located notes and cost only themselves."""
        document = parse(file.text)
        notes = [_note(file, fault) for fault in document.faults[:MOST_NOTES]]
        claims: list[Claim] = []
        if document.root is not None and document.root.kind is Kind.OBJECT:
            notes += itertools.islice(_duplicates(file, document.root), MOST_NOTES)
            stating = NodeStating(file, "deepspeed", scope)
            state(stating, document.root)
            claims = stating.claims
        elif document.root is not None:
            span = span_of(file.path, file.text, document.root.start, document.root.end)
            message = f"{file.path} holds no JSON object, expected `{{` first; DeepSpeed cannot use it"
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
        message += "; DeepSpeed's own reader accepts it, json.load (Hugging Face's trainer) stops here"
    return Note(NoteKind.MALFORMED, message, span)


def _duplicates(file: SourceFile, node: Node) -> Iterator[Note]:
    first: dict[str, int] = {}
    for member in node.members:
        if member.key in first:
            span = span_of(file.path, file.text, member.key_start, member.key_end)
            before = file.text.count("\n", 0, first[member.key]) + 1
            message = (
                f'{file.path} line {span.line}: the key "{member.key[:60]}" stands already on line'
                f" {before}; DeepSpeed stops with 'Duplicate keys in DeepSpeed config', json.load"
                " takes this one: remove one of them"
            )
            yield Note(NoteKind.MALFORMED, message, span)
        first[member.key] = member.key_start
        yield from _duplicates(file, member.node)
