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
from pathlib import Path

from preflight._util import toml
from preflight._util.budget import truncate
from preflight.model.job import (
    AUTO,
    WHOLE_JOB,
    Claim,
    Known,
    Note,
    NoteDetail,
    NoteKind,
    Scope,
    Unresolved,
    Value,
    span_of,
)
from preflight.sources.base import Reading, SourceFile, Tree
from preflight.sources.configs.setting_claims import state_settings
from preflight.sources.formats.comments import suppressions
from preflight.sources.formats.lenient_json import parse
from preflight.sources.formats.structured import Fault, Kind, Member, Node, NodeClaims

#: More faults from one file add no information.
MAX_NOTES = 20

_OWN_KEYS = ("train_micro_batch_size_per_gpu", "zero_optimization", "zero_allow_untested_optimizer")
_SHARED_KEYS = (
    *("train_batch_size", "gradient_accumulation_steps", "gradient_clipping", "steps_per_print"),
    *("wall_clock_breakdown", "optimizer", "fp16", "bf16"),
)
#: Keys beside which these are the saved arguments of a program.
_OF_ARGUMENTS = re.compile(
    r'"(?:output_dir|learning_rate|model_name_or_path|per_device_train_batch_size|num_train_epochs|max_steps)"\s*:'
)
_FILE_NAME = re.compile(r"(?:.*[._-])?(?:ds|deepspeed|zero\d?)(?:[._-].*)?|.*deepspeed.*", re.IGNORECASE)


class DeepSpeedSource:
    """Reads one DeepSpeed configuration file."""

    name = "deepspeed"
    roles = ("config",)

    def recognises(self, file: SourceFile) -> bool:
        """Whether this is JSON with keys that only DeepSpeed has, or with shared ones and DeepSpeed's name."""
        name = posixpath.basename(file.path)
        if not name.lower().endswith((".json", ".hjson", ".jsonc")):
            return False
        if _OF_ARGUMENTS.search(file.text):
            return False
        if any(f'"{key}"' in file.text for key in _OWN_KEYS):
            return True
        shared = sum(1 for key in _SHARED_KEYS if f'"{key}"' in file.text)
        return shared >= 3 or (shared >= 1 and _FILE_NAME.fullmatch(name) is not None)

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
            message = f"{file.path} is not a JSON object: it must start with `{{`; DeepSpeed cannot use it"
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


#: Paths of keys, and their quantities.
QUANTITY_OF: dict[tuple[str, ...], str] = {
    tuple(path.split(".")): quantity for path, quantity in toml.load(Path(__file__).with_suffix(".toml")).items()
}
_SECTIONS = frozenset(path[:depth] for path in QUANTITY_OF for depth in range(1, len(path)))
#: A section with more keys than this is not a configuration.
_MAX_NAMES = 300
#: Sections whose keys are also claimed by name.
_NAMED_SECTIONS = frozenset(path for path in _SECTIONS if path[0] == "zero_optimization")


def state(node_claims: NodeClaims, root: Node, *, of_others: bool = False) -> None:
    """State the claims of a configuration, in the order of its keys; of duplicate keys the last is in force.

    `of_others`: DeepSpeed's keys are mixed with those of another framework, so top-level keys are not claimed by name.
    """
    if not of_others:
        for member in truncate(root.in_force, _MAX_NAMES, "keys"):
            _name(node_claims, member, (member.key,))
    _section(node_claims, root, ())


def _section(node_claims: NodeClaims, node: Node, above: tuple[str, ...]) -> None:
    for position, member in enumerate(node.in_force):
        path = (*above, member.key)
        if above in _NAMED_SECTIONS and position < _MAX_NAMES:
            _name(node_claims, member, path)
        if path in _SECTIONS and member.node.kind is Kind.OBJECT:
            _section(node_claims, member.node, path)
        elif path in QUANTITY_OF:
            node_claims.add(QUANTITY_OF[path], _value(node_claims, member.node), member)
        elif path == ("zero_optimization",) and member.node.value is True:
            # An old spelling: "zero_optimization": true is stage 1.
            node_claims.add("zero_stage", Known(1), member)


def _name(node_claims: NodeClaims, member: Member, path: tuple[str, ...]) -> None:
    node_claims.claims.append(
        Claim(
            quantity="deepspeed_key",
            value=_filled_in(member.key) or Known(".".join(path)),
            span=node_claims.places.span(member.key_start, member.key_end),
            spelling=node_claims.file.text[member.key_start : member.key_end][:100],
            source=node_claims.source,
            scope=node_claims.scope,
            strength=node_claims.strength,
        )
    )


def _filled_in(key: str) -> Unresolved | None:
    return Unresolved(f"{key[:60]}: a placeholder that is replaced later") if "{{" in key or "${" in key else None


def _value(node_claims: NodeClaims, node: Node) -> Value:
    if node.kind is Kind.SCALAR:
        return AUTO if node.value == "auto" else Known(node.value)
    text = node_claims.file.text[node.start : node.end]
    if node.kind is Kind.TEMPLATE:
        return Unresolved(f"{text[:60]}: a placeholder that is replaced later")
    if node.kind is Kind.BROKEN:
        return Unresolved(f"{text[:60]!r} is not a value")
    # A list or an object instead of a number: a rule will quote the text as written.
    return Known(" ".join(text[:200].split()))
