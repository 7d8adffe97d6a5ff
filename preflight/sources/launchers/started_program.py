"""The training program that a launcher starts: its launch, and the claims of its arguments."""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from preflight.model.job import Claim, Known, Launch, Reference, one_of
from preflight.sources.base import OWN_SETTINGS, SETTINGS, LaunchLine, Reading, SourceFile, Tree, UnknownKind, Word
from preflight.sources.hydra.run_config import claims_of, run_config
from preflight.sources.launchers.claim_builder import ClaimBuilder
from preflight.sources.launchers.framework_arguments import (
    argument_framework,
    framework_claims,
    model_references,
    rl_claims,
    trainer_claims,
)
from preflight.sources.launchers.option_parser import (
    known_prefix,
    module_path,
    paths_of,
    python_program,
    relative,
    text_of,
)
from preflight.sources.launchers.script_arguments import argument_claims, megatron_claims, option_claims, program_claims


@dataclass(frozen=True, slots=True)
class StartedProgram:
    """A launch, with the claims and references of the program's arguments."""

    launch: Launch
    claims: tuple[Claim, ...]
    references: tuple[Reference, ...]

    def reading(self, claims: Iterable[Claim] = (), references: Iterable[Reference] = ()) -> Reading:
        """The reading of the whole line: what the launcher's own options state, then the program."""
        return Reading((*claims, *self.claims), (self.launch,), (*references, *self.references))

    def of_package(self) -> StartedProgram:
        """The same for a program in an installed package: it names no script of the job."""
        return StartedProgram(
            replace(self.launch, program=""),
            tuple(claim for claim in self.claims if claim.quantity != "script"),
            tuple(reference for reference in self.references if reference.role != "script"),
        )


def read_program(
    line: LaunchLine, launcher: str, words: Sequence[Word], tree: Tree, *, module: bool = False, python: bool = True
) -> StartedProgram:
    """Read `words`, a program and its arguments, as started by `launcher`.

    Args:
        line: the launch line.
        launcher: the name of the launcher.
        words: the program and its arguments.
        tree: where files are looked up.
        module: whether the program is the name of a module.
        python: whether the launcher itself adds the interpreter.
    """
    words = list(words)
    if launcher not in _PLAIN_LAUNCHERS and len(words) > 1 and words[1].value == Known("--"):
        # argparse and click take it for the end of the launcher's own options.
        del words[1]
    if not python:
        words, module = _without_interpreter(words, module)
    words = [*words[:1], *(_with_default_file(word, line, tree) for word in words[1:])]
    program, references = "", []
    builder = ClaimBuilder(launcher, line.scope, line.command.condition)
    if words:
        word = words[0]
        found = [_program(text, line, tree, module=module) for text in paths_of(word.value, word.parts) if text]
        for path, inside in found:
            if inside and (len(found) == 1 or isinstance(tree.read(path), SourceFile)):
                references.append(Reference(path, "script", word.span, line.scope, line.command.is_elsewhere))
        program = found[0][0] if len(found) == 1 else ""
        value = one_of(path for path, _ in found) if found else word.value
        builder.add("script", value, word.span, word.spelling)
    claims, argument_references = argument_claims(line, words[1:], tree)
    trainer, files = trainer_claims(line, words[1:], tree)
    own, configurations = framework_claims(line, words, tree)
    own = (*own, *megatron_claims(line, words, tree))
    if len(references) == 1:
        claims = (*claims, *program_claims(line, references[0].target, words[1:], tree))
    framework = _read_framework(line, words, tree, module=module)
    models = model_references(line, (*claims, *trainer, *framework.claims), tree)
    if framework.starts_ranks and launcher in _PLAIN_LAUNCHERS:
        launcher = framework.starts_ranks
    launch = Launch(
        id=line.launch_id,
        launcher=launcher,
        span=line.words[0].span if line.words else line.command.span,
        wrappers=line.wrappers,
        program=program,
        arguments=tuple(text_of(word) for word in words[1:]),
        condition=line.command.condition,
        started_at=line.command.started_at,
        concurrent=line.command.concurrent,
    )
    return StartedProgram(
        launch,
        (*builder.claims, *claims, *trainer, *own, *framework.claims),
        (
            *references,
            *argument_references,
            *files,
            *configurations,
            *models,
            *framework.references,
            *_settings(line, words[1:], tree, OWN_SETTINGS if _reads_own_settings(references, tree) else SETTINGS),
        ),
    )


#: Options that name the file with all settings of a run, in many programs.
_SETTINGS = re.compile(r"--?(?:c|cfg|config|configs|config[-_](?:file|path|yaml)|cfg[-_](?:file|path)|recipe|settings)")
#: How a script reads such a file itself.
_READS_SETTINGS = re.compile(r"\b(?:yaml\.(?:\w+_)?load|json\.load|toml(?:i|lib)?\.load)\s*\(")
_SETTINGS_FILE = re.compile(r"\.(?:ya?ml|toml|json)$")


def _reads_own_settings(references: Sequence[Reference], tree: Tree) -> bool:
    """Whether the one script that a line starts reads files of settings itself."""
    file = tree.read(references[0].target) if len(references) == 1 else None
    return isinstance(file, SourceFile) and _READS_SETTINGS.search(file.text) is not None


def _with_default_file(word: Word, line: LaunchLine, tree: Tree) -> Word:
    """A word with the file of settings that it names unless the caller of the script gives another: `${1:-a.yaml}`."""
    origin = word.origin
    default = origin.default or "" if origin is not None and origin.kind is UnknownKind.CALLER else ""
    target = relative(default, line, tree) if _SETTINGS_FILE.search(default) else None
    is_there = target is not None and isinstance(tree.read(target), SourceFile)
    return replace(word, value=Known(default), many=False, origin=None) if is_there else word


def _settings(line: LaunchLine, words: Sequence[Word], tree: Tree, role: str) -> Iterator[Reference]:
    """Yield the existing files of settings that a program is given: unless something is read from them, the job is not
    understood.
    """
    for word, after in itertools.zip_longest(words, words[1:]):
        name, equals, value = (text_of(word) or "").partition("=")
        value = value if equals else (text_of(after) or "") if after is not None else ""
        if _SETTINGS.fullmatch(name) is None or _SETTINGS_FILE.search(value) is None:
            continue
        target = relative(value, line, tree)
        if target is not None and isinstance(tree.read(target), SourceFile):
            yield Reference(target, role, word.span, line.scope)


@dataclass(frozen=True, slots=True)
class _FrameworkReading:
    """The claims of the program's framework; `starts_ranks` names one whose program starts all ranks itself."""

    claims: tuple[Claim, ...] = ()
    references: tuple[Reference, ...] = ()
    starts_ranks: str = ""


#: Launchers that only run the program: a program that starts all ranks is then the launcher.
_PLAIN_LAUNCHERS = ("python", "srun", "mpirun", "horovodrun", "jsrun")
#: The role of files of a composed configuration; their claims are those of the composition.
COMPOSED = "composed"


def _read_framework(line: LaunchLine, words: Sequence[Word], tree: Tree, *, module: bool) -> _FrameworkReading:
    """The claims of the program's configuration, or of its arguments, if a framework's table lists them."""
    if not words:
        return _FrameworkReading()
    word = words[0]
    by_arguments = argument_framework(known_prefix(word), words[1:])
    if by_arguments is not None:
        claims = rl_claims(by_arguments, line, words)
        if known_prefix(word) in by_arguments.own:
            claims = (*claims, *option_claims(by_arguments.name, line, words[1:]))
        return _FrameworkReading(claims, (), by_arguments.name if by_arguments.starts_ranks else "")
    run = run_config(line, words, tree, module=module)
    if run is None:
        return _FrameworkReading()
    claims = claims_of(run, line.scope, line.command.condition, word.span, word.spelling)
    references = tuple(Reference(path, COMPOSED, word.span, line.scope) for path in dict.fromkeys(run.files))
    starts = run.framework.name if run.framework is not None and run.framework.starts_ranks else ""
    return _FrameworkReading(claims, references, starts)


def _program(text: str, line: LaunchLine, tree: Tree, *, module: bool) -> tuple[str, bool]:
    """The file that a program's name resolves to, and whether it is inside the root."""
    if module:
        return module_path(text, line, tree), True
    inside = relative(text, line, tree)
    return (text, False) if inside is None else (inside, True)


def _without_interpreter(words: list[Word], module: bool) -> tuple[list[Word], bool]:
    """Remove the interpreter from `python -u train.py`, which the user writes with `--no-python`."""
    if words and re.fullmatch(r"python[\d.]*", posixpath.basename(known_prefix(words[0]))):
        found = python_program(words)
        if found is not None:
            return list(found.words), found.module
    return words, module
