"""Reads training scripts in Python by their syntax tree; nothing of them is ever executed or imported."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace

from preflight.job import WHOLE_JOB, Claim, Known, Note, NoteKind, Reference, Scope, Span, Strength
from preflight.job.span import LONGEST_SNIPPET
from preflight.redact import scrub
from preflight.sources.base import Reading, SourceFile, Tree
from preflight.sources.comments import suppressions
from preflight.sources.python import (
    arguments,
    cluster_train,
    collectives,
    devices,
    divergence,
    entry,
    environment,
    frameworks,
    horovod,
    imports,
    loading,
    paddle,
    process_group,
    ray,
    reads,
    required,
    saving,
    serial,
    shards,
    splitting,
    tensorflow,
    trainers,
    wrapping,
)
from preflight.sources.python.module import Module
from preflight.sources.python.positions import Positions
from preflight.sources.python.speaking import speaks

_READERS: tuple[Callable[[Module], Iterable[Claim | Reference]], ...] = (
    process_group.claims,
    loading.claims,
    arguments.claims,
    environment.claims,
    required.claims,
    serial.claims,
    paddle.claims,
    cluster_train.claims,
    frameworks.claims,
    entry.claims,
    saving.claims,
    devices.claims,
    collectives.claims,
    divergence.claims,
    shards.claims,
    reads.claims,
    ray.claims,
    saving.folders,
    saving.handed_over,
    wrapping.claims,
    splitting.claims,
    horovod.claims,
    tensorflow.claims,
    trainers.claims,
)
#: Characters. Scripts written by people stay below 300,000; parsing costs some ten times the size in time and memory.
LARGEST_SCRIPT = 512 * 1024
#: What an imported module says about the job; its other claims are about what it could do for other scripts.
_OF_MODULES = frozenset(
    (
        "backend",
        "process_group_timeout_s",
        "master_addr",
        "master_port",
        "uses_ddp",
        "uses_fsdp",
        "set_epoch_called",
        "serial_work",
        "training_framework",
        "waits_for_servers",
        "parallel_environment",
        "rank_dependent_steps",
        "rank_local_exit",
        "step_failure_swallowed",
        "guarded_collective",
        "group_left_on_failure",
        "device_of_masked_list",
        "device_index",
        "spawned_processes",
        "host_name_transport",
        "device_of_global_rank",
        "uneven_shards",
        "checkpoint_written",
        "variable_read",
        "ddp_device_count",
        "sync_batchnorm_late",
        "device_not_chosen",
        "data_unsplit",
        "folder_made",
        "horovod_started",
        "horovod_optimizer",
        "horovod_broadcasts",
    )
)

#: In the place of a role: the reading of a file that was parsed, from which each role takes its part.
_WHOLE = "*"


class PythonSource:
    """Reads one training script."""

    name = "python"
    roles = ("script", "module", "submodule")

    def __init__(self) -> None:
        # Modules that many scripts of a repository import are read once. Only for one tree at a time: what a file
        # refers to depends on what else is there.
        self._tree: Tree | None = None
        self._readings: dict[tuple[str, str, str], Reading] = {}

    def recognises(self, file: SourceFile) -> bool:
        """Whether the name ends in `.py`, or the first line calls a Python interpreter."""
        if file.path.endswith(".py"):
            return True
        head = file.text[:200].partition("\n")[0]
        return head.startswith("#!") and "python" in head and "." not in file.path.rpartition("/")[2]

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """State the script's claims; a script that cannot be parsed gives one note at the place of the error.

        Without a role (a file of a folder that nothing starts) one without any word that counts is not parsed. In the
        roles `module` and `submodule` (something the script imports) only what it says about process
        groups, epochs and long work is stated.
        """
        self._turn_to(tree)
        key = (file.path, file.sha256, role)
        if key not in self._readings:
            self._readings[key] = self._read(file, tree, role)
        return _in_scope(self._readings[key], scope)

    def is_kept(self, file: SourceFile) -> bool:
        """Whether reading it takes a parse, whose outcome serves every role."""
        return speaks(file.text, "")

    def keep(self, file: SourceFile, tree: Tree, reading: Reading) -> None:
        """Take what `read` said of a file that is kept, without a role, somewhere else."""
        self._turn_to(tree)
        self._readings.setdefault((file.path, file.sha256, _WHOLE), reading)

    def _turn_to(self, tree: Tree) -> None:
        if tree is not self._tree:
            self._tree, self._readings = tree, {}

    def _read(self, file: SourceFile, tree: Tree, role: str) -> Reading:
        if not speaks(file.text, role):
            if role == "submodule":
                return Reading(suppressions=suppressions(file))
            found = imports.quick_references(file, tree, role, WHOLE_JOB)
            claims = () if role in imports.NEXT_ROLE else (_script(file),)
            return Reading(claims, references=tuple(found), suppressions=suppressions(file))
        # Not the key of the role "": what that says of a file that is not worth a parse is no whole reading.
        key = (file.path, file.sha256, _WHOLE)
        if key not in self._readings:
            self._readings[key] = self._whole(file, tree)
        return _in_role(self._readings[key], role)

    def _whole(self, file: SourceFile, tree: Tree) -> Reading:
        """Everything the script states, as one that is started itself."""
        parsed = parse(file)
        if isinstance(parsed, Note):
            return Reading(notes=(parsed,))
        module = Module(file, parsed, tree, WHOLE_JOB)
        found: dict[tuple[object, ...], Claim] = {}
        references: dict[tuple[object, ...], Reference] = {}
        modules = imports.references(module, "")
        references.update(((item.target, item.role, item.span), item) for item in modules)
        for reader in _READERS:
            for item in reader(module):
                if isinstance(item, Reference):
                    references.setdefault((item.target, item.role, item.span), item)
                else:
                    found.setdefault((item.quantity, item.span, item.strength, item.relation), item)
        ordered = sorted(found.values(), key=lambda claim: (claim.span.line, claim.span.column, claim.quantity))
        return Reading(
            suppressions=suppressions(file),
            claims=(_script(file), *ordered),
            references=tuple(references.values()),
        )


def _script(file: SourceFile) -> Claim:
    snippet = scrub(file.text.partition("\n")[0].rstrip("\r")[:LONGEST_SNIPPET])
    span = Span(file.path, 1, 1, 1, 1, snippet)
    return Claim("script", Known(file.path), span, file.path, "python", strength=Strength.DEFAULT)


def _in_role(reading: Reading, role: str) -> Reading:
    """What of a script's own reading counts when it is only imported."""
    if role not in imports.NEXT_ROLE:
        return reading
    next_role = imports.NEXT_ROLE[role]
    references = (
        replace(item, role=next_role) if item.role == "module" else item
        for item in reading.references
        if next_role or item.role != "module"
    )
    claims = tuple(claim for claim in reading.claims if claim.quantity in _OF_MODULES)
    return replace(reading, claims=claims, references=tuple(references))


def _in_scope(reading: Reading, scope: Scope) -> Reading:
    """The same reading, stated in `scope`."""
    if scope == WHOLE_JOB:
        return reading
    return replace(
        reading,
        claims=tuple(_claim_in(claim, scope) for claim in reading.claims),
        references=tuple(replace(reference, scope=scope) for reference in reading.references),
    )


def _claim_in(claim: Claim, scope: Scope) -> Claim:
    return replace(claim, scope=scope, because=tuple(_claim_in(each, scope) for each in claim.because))


def parse(file: SourceFile) -> ast.Module | Note:
    """The syntax tree of a script, or a note at the place where it stops being Python 3."""
    if len(file.text) > LARGEST_SCRIPT:
        message = (
            f"{file.path} has {len(file.text)} characters, more than the {LARGEST_SCRIPT} of a script that is parsed;"
            " it is not judged"
        )
        return Note(NoteKind.TOO_LARGE, message, Positions(file.path, file.text).between(0, 0))
    try:
        with warnings.catch_warnings():
            # An invalid escape in somebody's script is not for our standard error.
            warnings.simplefilter("ignore")
            return ast.parse(file.text)
    except SyntaxError as error:
        positions = Positions(file.path, file.text)
        start = positions.offset(error.lineno or 1, 0) + max(0, (error.offset or 1) - 1)
        start = min(start, len(file.text))
        span = positions.between(start, start)
        span = replace(span, snippet=scrub(span.snippet))
        message = (
            f"{file.path} line {span.line} column {span.column}: not Python 3 ({error.msg}); nothing of this"
            " script is judged"
        )
        return Note(NoteKind.MALFORMED, message, span)
    except (RecursionError, MemoryError):
        message = f"{file.path} is nested too deeply to be parsed; nothing of this script is judged"
    except ValueError as error:
        message = f"{file.path} cannot be parsed as Python: {error}; nothing of this script is judged"
    return Note(NoteKind.MALFORMED, message, Positions(file.path, file.text).between(0, 0))
