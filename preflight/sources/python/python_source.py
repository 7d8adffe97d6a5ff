"""Reads training scripts in Python from their syntax trees; they are never executed or imported."""

from __future__ import annotations

import ast
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from preflight._util.redaction import scrub
from preflight._util.spans import MAX_SNIPPET_LENGTH
from preflight.model.job import WHOLE_JOB, Claim, Known, Note, NoteDetail, NoteKind, Reference, Scope, Span, Strength
from preflight.sources.base import REACHED, Command, Reading, SourceFile, Tree, suppressions
from preflight.sources.python import (
    argparse_options,
    called_settings,
    checkpoint_keys,
    collectives,
    configurations,
    data_loaders,
    devices,
    environment,
    frameworks,
    gradients,
    imports,
    model_wrappers,
    monitored_metrics,
    paddle,
    paddle_legacy,
    paddle_strategy,
    process_group,
    schedules,
    shards,
    single_ranks,
    started_commands,
    submitted_jobs,
    trainers,
    training_loop,
    worker_processes,
    wrapped_models,
    written_files,
)
from preflight.sources.python.module import Module, Positions, parse_silently
from preflight.sources.python.program import Program
from preflight.sources.python.words import WORDS
from preflight.sources.shell.shell_document import cover

_READERS: tuple[Callable[[Module], Iterable[Claim | Reference]], ...] = (
    process_group.claims,
    data_loaders.claims,
    data_loaders.batch_claims,
    data_loaders.datasets_on_gpu,
    data_loaders.repeated_streams,
    argparse_options.claims,
    environment.claims,
    environment.required_claims,
    environment.rank_setters,
    imports.rank_setters,
    imports.claims,
    imports.imported_names,
    training_loop.serial_claims,
    paddle.claims,
    paddle_legacy.cluster_train_claims,
    trainers.usage_claims,
    model_wrappers.exchange_claims,
    started_commands.entry_claims,
    written_files.checkpoint_claims,
    checkpoint_keys.claims,
    devices.claims,
    collectives.claims,
    collectives.swallowed_failures,
    model_wrappers.early_optimizer_claims,
    shards.claims,
    data_loaders.divided_claims,
    environment.scheduler_claims,
    frameworks.ray_claims,
    frameworks.claims,
    written_files.folders,
    written_files.folders_of_module,
    written_files.shared_files,
    written_files.shared_path_claims,
    model_wrappers.claims,
    data_loaders.unsplit_claims,
    frameworks.horovod_claims,
    frameworks.tensorflow_claims,
    trainers.claims,
    called_settings.claims,
    training_loop.claims,
    schedules.claims,
    schedules.unit_claims,
    gradients.losses_divided_by_ranks,
    environment.late_variables,
    checkpoint_keys.state_claims,
    monitored_metrics.claims,
    paddle_strategy.unused_strategies,
    schedules.accelerate_claims,
    schedules.rates_of_one_node,
    frameworks.hugectr_claims,
    single_ranks.claims,
    called_settings.torch_claims,
    process_group.drawn_ports,
    process_group.spawned_on_nodes,
    environment.names_with_rank,
    wrapped_models.claims,
    process_group.need_claims,
    configurations.claims,
)
#: What the cells of a notebook that starts its ranks itself are read for: they are then the training script.
_NOTEBOOK_READERS: tuple[Callable[[Module], Iterable[Claim]], ...] = (
    data_loaders.claims,
    collectives.claims,
    collectives.swallowed_failures,
)
#: Characters. Scripts written by people stay below 300,000; parsing costs some ten times the size in time and memory.
MAX_SCRIPT_BYTES = 512 * 1024
#: The claims of an imported module that count; its others concern the scripts that use it differently.
_MODULE_QUANTITIES = frozenset(WORDS["quantities_of_modules"])

#: How Python's messages about indentation start that is wrong in every version.
_INDENTATION_FAULTS = ("unexpected indent", "expected an indented block")

#: What the claims of a module in the role `reached` are never about.
_NOT_REACHED = frozenset(WORDS["quantities_of_scripts_alone"])
#: Used instead of a role: the full reading of a parsed file, from which each role takes its part.
_FULL_READING = "*"


class PythonSource:
    """Reads one training script."""

    name = "python"
    roles = ("script", "module", "submodule", REACHED)

    def __init__(self) -> None:
        # Modules that many scripts of a repository import are read once. Only for one tree at a time: the references of
        # a file depend on the other files.
        self._tree: Tree | None = None
        self._readings: dict[tuple[str, str, str], Reading] = {}
        #: What was read of modules that scripts import, by path and hash.
        self._imported: dict[tuple[str, str], Any] = {}

    def recognises(self, file: SourceFile) -> bool:
        """Return whether the name ends in `.py`, or the first line calls a Python interpreter."""
        if file.path.endswith(".py"):
            return True
        head = file.text[:200].partition("\n")[0]
        return head.startswith("#!") and "python" in head and "." not in file.path.rpartition("/")[2]

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """Return the script's claims; a script that cannot be parsed gives one note at the location of the error.

        Without a role (a file of a folder that nothing starts) a file without any relevant word is not parsed. In the
        roles `module` and `submodule` (imported by the script) only claims about process groups, epochs and long work
        are stated.
        """
        self._use_tree(tree)
        key = (file.path, file.sha256, role)
        if key not in self._readings:
            self._readings[key] = self._read(file, tree, role)
        return _rescope(self._readings[key], scope)

    def is_kept(self, file: SourceFile) -> bool:
        """Return whether reading it requires parsing; the result of that serves every role."""
        return may_state_claims(file.text, "")

    def keep(self, file: SourceFile, tree: Tree, reading: Reading) -> None:
        """Cache a reading that another process made without a role."""
        self._use_tree(tree)
        self._readings.setdefault((file.path, file.sha256, _FULL_READING), reading)

    def _use_tree(self, tree: Tree) -> None:
        if tree is not self._tree:
            self._tree, self._readings, self._imported = tree, {}, {}

    def _read(self, file: SourceFile, tree: Tree, role: str) -> Reading:
        if role.startswith(configurations.ROLE):
            return self._recipe(file, tree, role[len(configurations.ROLE) :])
        if not may_state_claims(file.text, role):
            if role in ("submodule", REACHED):
                return Reading(suppressions=suppressions(file))
            found = imports.quick_references(file, tree, role, WHOLE_JOB)
            claims = () if role in imports.NEXT_ROLE else (_script(file),)
            return Reading(claims, references=tuple(found), suppressions=suppressions(file))
        # Not the key of the role "": for a file that is not worth parsing that is not a full reading.
        key = (file.path, file.sha256, _FULL_READING)
        if key not in self._readings:
            self._readings[key] = self._read_all(file, tree)
        return _select_for_role(self._readings[key], role, file.text)

    def _read_all(self, file: SourceFile, tree: Tree) -> Reading:
        """Return the claims of the script as if it were started itself."""
        parsed = parse(file)
        if isinstance(parsed, Note):
            return Reading(notes=(parsed,))
        module = Module(file, parsed, tree, WHOLE_JOB, self._imported)
        module.program = Program(module)
        found: dict[tuple[object, ...], Claim] = {}
        references: dict[tuple[object, ...], Reference] = {}
        modules = imports.references(module, "")
        references.update(((item.target, item.role, item.span), item) for item in modules)
        for reader in _READERS:
            for item in reader(module):
                if isinstance(item, Reference):
                    references.setdefault((item.target, item.role, item.span), item)
                else:
                    # One place may show several features, and import several names.
                    value = item.value if item.quantity in ("script_feature", "imported_name") else None
                    found.setdefault((item.quantity, value, item.span, item.strength, item.relation, item.scope), item)
        executors = list(frameworks.launches(module))
        if len(executors) > 1:
            found = {key: claim for key, claim in found.items() if not frameworks.is_required(claim)}
        ordered = sorted(found.values(), key=lambda claim: (claim.span.line, claim.span.column, claim.quantity))
        made: list[frameworks.ExecutorLaunch | started_commands.OwnLaunch] = [
            *executors,
            *started_commands.launches(module),
        ]
        started = _read_started_commands(module, file, tree)
        return Reading(
            suppressions=suppressions(file),
            claims=(
                _script(file),
                *ordered,
                *(claim for item in made for claim in item.claims),
                *started.claims,
            ),
            launches=(*(item.launch for item in made), *started.launches),
            references=(*references.values(), *started.references),
            notes=started.notes,
        )

    def _recipe(self, file: SourceFile, tree: Tree, name: str) -> Reading:
        """Return the claims of one configuration of a module."""
        parsed = parse(file)
        if isinstance(parsed, Note):
            return Reading(notes=(parsed,))
        return Reading(claims=configurations.claims_of(Module(file, parsed, tree, WHOLE_JOB), name))


def _read_started_commands(module: Module, file: SourceFile, tree: Tree) -> Reading:
    """Return the launches of command lines that the script starts, and of jobs that it submits."""
    started = [_evaluate(each, file, tree) for each in started_commands.started_commands(module)]
    result = Reading()
    if started:
        result = result.joined(_read_evaluated([command for commands in started for command in commands], tree))
    for job in submitted_jobs.submitted_jobs(module):
        reading = _read_evaluated(_evaluate(job.start, file, tree), tree)
        sizes = tuple(replace(claim, scope=launch.scope) for launch in reading.launches for claim in job.claims)
        result = result.joined(reading).joined(Reading(sizes))
    return result


def _evaluate(each: started_commands.StartedCommand, file: SourceFile, tree: Tree) -> Sequence[Command]:
    from preflight.sources.shell.evaluator import evaluate_code, evaluate_words
    from preflight.sources.shell.state import Kind, Slot

    environment = {
        name: Slot(Kind.TEXT, cover(text, each.place), text, exported=True) for name, text in each.environment.items()
    }
    if each.words:
        return evaluate_words(file, tree, each.words, environment, each.place, background=each.background).commands
    return evaluate_code(file, tree, each.line, environment, each.place, background=each.background).commands


def _read_evaluated(commands: Sequence[Command], tree: Tree) -> Reading:
    from preflight.sources.launchers.launch_lines import read_commands
    from preflight.sources.secrets import secrets_of, without_secrets

    reading = read_commands(commands, {}, tree, batch=False)
    return without_secrets(reading, secrets_of(commands)) if reading.launches else Reading()


def read_notebook(file: SourceFile, tree: Tree) -> Reading:
    """Return the launches that the Python cells of a notebook make, at the lines of the cells."""
    code = python_of(file)
    if code is None:
        return Reading()
    parsed = parse(code)
    if isinstance(parsed, Note):
        return Reading()
    module = Module(code, parsed, tree, WHOLE_JOB)
    own = list(started_commands.launches(module))
    started = _read_started_commands(module, code, tree)
    claims = (
        *(claim for item in own for claim in item.claims),
        *worker_processes.notebook_claims(module),
        *(claim for reader in (_NOTEBOOK_READERS if own else ()) for claim in reader(module)),
    )
    return started.joined(Reading(claims, tuple(item.launch for item in own)))


def _script(file: SourceFile) -> Claim:
    snippet = scrub(file.text.partition("\n")[0].rstrip("\r")[:MAX_SNIPPET_LENGTH])
    span = Span(file.path, 1, 1, 1, 1, snippet)
    return Claim("script", Known(file.path), span, file.path, "python", strength=Strength.DEFAULT)


#: What a file runs only if it is started itself.
_MAIN = re.compile(r"^if __name__ ?== ?[\"']__main__[\"']:.*(?:\n(?:[ \t#].*)?)*", re.MULTILINE)


def _select_for_role(reading: Reading, role: str, text: str) -> Reading:
    """Return the part of a script's full reading that counts if it is only imported."""
    if role == REACHED:
        own = {launch.scope for launch in reading.launches}
        reached = (each for each in reading.claims if each.quantity not in _NOT_REACHED and each.scope not in own)
        # What is done before and after a call is seen in a run.
        of_program = called_settings.OF_PROGRAM
        reached = (each for each in reached if not each.quantity.endswith(of_program))
        return Reading(tuple(reached), suppressions=reading.suppressions)
    claims = tuple(claim for claim in reading.claims if claim.source != written_files.IN_FUNCTIONS)
    reading = replace(reading, claims=claims)
    if role not in imports.NEXT_ROLE:
        return reading
    main = _MAIN.search(text)
    first = text.count("\n", 0, main.start()) + 1 if main is not None else 0
    own_lines = range(first, first + main[0].count("\n") + 1) if main is not None else ()
    own = {launch.scope for launch in reading.launches}
    next_role = imports.NEXT_ROLE[role]
    references = (
        replace(item, role=next_role) if item.role == "module" else item
        for item in reading.references
        if (next_role or item.role != "module") and item.scope not in own
    )
    claims = tuple(
        claim
        for claim in reading.claims
        if (claim.quantity in _MODULE_QUANTITIES or claim.source == trainers.DEFAULTS)
        and claim.scope not in own
        and claim.span.line not in own_lines
    )
    notes = () if own else reading.notes
    return replace(reading, claims=claims, launches=(), notes=notes, references=tuple(references))


def _rescope(reading: Reading, scope: Scope) -> Reading:
    """Return a copy of the reading whose claims are in `scope`."""
    if scope == WHOLE_JOB:
        return reading
    # A training program that starts something itself is not the launcher of the job.
    own = {launch.scope for launch in reading.launches}
    return replace(
        reading,
        claims=tuple(_claim_in(claim, scope) for claim in reading.claims if claim.scope not in own),
        launches=(),
        notes=() if own else reading.notes,
        references=tuple(replace(item, scope=scope) for item in reading.references if item.scope not in own),
    )


def _claim_in(claim: Claim, scope: Scope) -> Claim:
    # One of several recipes of a module keeps its name.
    if claim.scope.role and not scope.role:
        scope = replace(scope, role=claim.scope.role)
    return replace(claim, scope=scope, because=tuple(_claim_in(each, scope) for each in claim.because))


_VERSION = ".".join(map(str, sys.version_info[:2]))


def parse(file: SourceFile) -> ast.Module | Note:
    """Return the syntax tree of a script, or a note at the location where it stops being Python 3."""
    if len(file.text) > MAX_SCRIPT_BYTES:
        message = (
            f"{file.path} has {len(file.text)} characters, more than the limit of {MAX_SCRIPT_BYTES}"
            " for a script; it was not judged"
        )
        return Note(NoteKind.TOO_LARGE, message, Positions(file.path, file.text).between(0, 0), required=True)
    try:
        return parse_silently(file.text)
    except SyntaxError as error:
        positions = Positions(file.path, file.text)
        start = positions.offset(error.lineno or 1, 0) + max(0, (error.offset or 1) - 1)
        start = min(start, len(file.text))
        span = positions.between(start, start)
        span = replace(span, snippet=scrub(span.snippet))
        message = (
            f"{file.path} line {span.line} column {span.column}: not Python {_VERSION}, which runs preflight"
            f" ({error.msg}); nothing of this script is judged"
        )
        is_indentation = error.msg.startswith(_INDENTATION_FAULTS)
        return Note(NoteKind.MALFORMED, message, span, detail=NoteDetail.INDENTATION if is_indentation else None)
    except (RecursionError, MemoryError):
        message = f"{file.path} is nested too deeply to be parsed; this script was not judged"
        return Note(NoteKind.TOO_LARGE, message, Positions(file.path, file.text).between(0, 0), required=True)
    except ValueError as error:
        message = f"{file.path} cannot be parsed as Python: {error}; this script was not judged"
    return Note(NoteKind.MALFORMED, message, Positions(file.path, file.text).between(0, 0))


#: Lines that IPython reads itself: `!pip install`, `%cd src`, `%%bash`.
_MAGIC = re.compile(r"\s*[!%?]")
_MAX_LINES = 50_000


def python_of(file: SourceFile) -> SourceFile | None:
    """Return the code of all cells that are Python; None for a file that is not a notebook, or has its lines in one."""
    try:
        cells: Any = json.loads(file.text).get("cells", ())
    except (ValueError, AttributeError, RecursionError):
        return None
    lines = [""] * min(file.text.count("\n") + 1, _MAX_LINES)
    at = 0
    for cell in cells if isinstance(cells, list) else ():
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        source = cell.get("source", "")
        written = [str(line) for line in source] if isinstance(source, list) else []
        placed: dict[int, str] = {}
        for line in written:
            found = _find(file.text, line, at)
            if found < 0:
                break
            number = file.text.count("\n", 0, found)
            if number in placed or number >= len(lines):
                break
            placed[number], at = line, found + 1
        else:
            if _is_python(written):
                for number, line in placed.items():
                    lines[number] = "" if _MAGIC.match(line) else line.rstrip("\n")
    return SourceFile(file.path, "\n".join(lines), file.sha256, file.size_bytes) if any(lines) else None


def _find(text: str, line: str, start: int) -> int:
    """Return where a line of code, with its line end, begins in the JSON, in which characters may be escaped."""
    for ascii_only in (False, True):
        escaped = json.dumps(line, ensure_ascii=ascii_only)
        found = text.find(escaped, start)
        if found >= 0:
            return found
    return -1


def _is_python(lines: list[str]) -> bool:
    """Return whether a cell is valid Python without its magic lines, and not code of another language."""
    if not lines or lines[0].lstrip().startswith("%%"):
        return False
    code = "".join("\n" if _MAGIC.match(line) else line for line in lines)
    try:
        parse_silently(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return textwrap.dedent(code) == code


#: A module without any of these states nothing that matters to the scripts that import it.
_MODULE_WORDS = WORDS["module_words"]
#: A script in a folder that nothing starts states nothing without one of these, or one of those above.
_SCRIPT_WORDS = WORDS["script_words"]
_ALL_WORDS = (*_MODULE_WORDS, *_SCRIPT_WORDS)
_BY_ROLE = {"": _ALL_WORDS, REACHED: (*_ALL_WORDS, "Dataset"), "module": _MODULE_WORDS, "submodule": _MODULE_WORDS}


def may_state_claims(text: str, role: str) -> bool:
    """Return whether a script that is read in this role may state anything. A script that is started always may."""
    words = _BY_ROLE.get(role)
    return words is None or any(word in text for word in words)
