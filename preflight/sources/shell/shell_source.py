"""The source for shell and batch scripts: evaluates them abstractly and reads their launches. Nothing is executed."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from preflight.model.job import (
    WHOLE_JOB,
    Claim,
    Known,
    Launch,
    Note,
    NoteDetail,
    NoteKind,
    Places,
    Reference,
    Scope,
    Span,
    Strength,
    Unresolved,
)
from preflight.sources.base import Command, Reading, Script, SourceFile, Tree, suppressions
from preflight.sources.secrets import secrets_of, without_secrets

_SUFFIXES = (
    *(".sh", ".bash", ".ksh", ".zsh", ".sbatch", ".slurm", ".slrm", ".job", ".sub"),
    *(".pbs", ".qsub", ".lsf", ".bsub", ".sge", ".cobalt"),
)
_SHEBANG = re.compile(r"#!\s*\S*(/|\s)(env\s+(-S\s+)?)?(ba|da|z|k)?sh\b")
_HETEROGENEOUS = re.compile(r"^#SBATCH[ \t]+(hetjob|packjob)\b", re.MULTILINE)
_HEAD = 4096
#: A script without any of these words launches nothing: programs that start ranks or containers, batch headers, and
#: communication settings that other scripts may source.
_LAUNCHING = re.compile(
    r"python|torch|deepspeed|ds_ssh|paddle|fleet|accelerate|srun|sbatch|mpi|horovod|\bray\b|composer|lightning|tensorflow"
    r"|llamafactory|axolotl|colossalai|primus-cli|xtuner|msrun|litgpt|erniekit|bpslaunch|\buv[ \t]+run\b"
    r"|\b(?:lmf|trl|tune|swift|megatron|sky|dstack|mcli|nemo|flux)[ \t]"
    r"|\bxpk\b|gcloud[ \t]|docker|podman|singularity|apptainer|kubectl|jsrun|aprun|pdsh|^#(?:SBATCH|PBS|BSUB)\s"
    r"|\b(?:NCCL|RCCL|GLOO|UCX|FI|TP_SOCKET|PADDLE|FLAGS|PET)_|TRAINING_ROLE"
    # A launcher that is known only at run time.
    r"|^[ \t]*\$\{?\w{1,60}\}?[ \t][^\n]{0,200}\.py\b",
    re.MULTILINE,
)
_SCRIPT_NAMES = re.compile(r"[\w.+-]+")

#: Ends of a launch line at which a carriage return does no harm.
_HARMLESS_RETURN = re.compile(r"#|[&;][ \t]*\r$|[ \t=]-?\d{1,18}(?:\.\d{0,18})?(?:[eE][-+]?\d{1,3})?[ \t]*\r$")
#: A line whose last word is the value of an option: the program starts, and handles the value itself.
_VALUE_LAST = re.compile(r"[ \t]--?[A-Za-z][\w.-]{0,100}(?:=|[ \t]+)[^\s\\-][^\s\\]{0,500}[ \t]*\r$")


class ShellSource:
    """Reads one shell script with everything it sources, calls and starts."""

    name = "shell"
    roles = ()

    def recognises(self, file: SourceFile) -> bool:
        """Return whether the file is a shell script, by its name, its first line or its batch header."""
        head = file.text[:_HEAD]
        if file.path.lower().endswith(_SUFFIXES):
            return True
        return bool(_SHEBANG.match(head)) or bool(re.search(r"^#(?:SBATCH|PBS|BSUB|COBALT)\s+-", head, re.MULTILINE))

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """Return the claims of the script's header and launches."""
        from preflight.sources.launchers import batch_jobs, slurm
        from preflight.sources.launchers.batch_jobs import batch_header, state_steps
        from preflight.sources.launchers.claim_builder import ClaimBuilder
        from preflight.sources.launchers.launch_context import library_exports
        from preflight.sources.launchers.launch_lines import read_commands
        from preflight.sources.shell.evaluator import evaluate

        script = evaluate(file, tree)
        # Each part of a heterogeneous job has its own counts, which no claim about the whole job can state.
        header = {} if _HETEROGENEOUS.search(file.text) else slurm.from_directives(script.directives)
        other_header = batch_header(file) if not script.directives else None
        scheduler = other_header.scheduler if other_header is not None else "slurm"
        if other_header is not None:
            header = other_header.options
        builder = ClaimBuilder(scheduler, scope, strength=Strength.SCHEDULER)
        slurm.state(builder, header)
        slurm.state_header(builder, header, script.directives if header and other_header is None else ())
        if other_header is None and (header or (not script.directives and slurm.has_directive_like(file.text))):
            slurm.state_ignored_directives(builder, file)
        if not header:
            slurm.state_component_gpus(builder, script.directives)
        batch = bool(script.directives) or other_header is not None
        own, submitted = batch_jobs.split(script.commands, file.path)
        launches = read_commands(own, header, tree, batch=batch, scheduler=scheduler)
        parts = batch_jobs.parts_of_one_job(submitted, tree)
        steps = state_steps(own, header, file.text, launches.launches) if header and other_header is None else ()
        exports = () if launches.launches else library_exports(script.final, scope)
        variables_read = tuple(slurm_variables_read(file, scope)) if header or launches.launches else ()
        reading = Reading(
            claims=(
                *builder.claims,
                *launches.claims,
                *parts.claims,
                *(claim for claim in steps if not _is_there(claim, tree)),
                *exports,
                *variables_read,
                *rejected_exports(file, scope),
                *overwritten_exports(file, scope),
                *blanks_in_assignments(script.commands, file, scope),
                *cut_values(script.commands, scope),
                *tested_gpus(file, scope),
                *comments_in_commands(file, scope),
                *produced_hostfiles(script, launches.references, scope),
                *unset_placeholders(script.commands, file, tree, scope),
            ),
            launches=(*launches.launches, *parts.launches),
            references=(*script.references, *launches.references, *parts.references),
            notes=(*script.notes, *launches.notes, *_carriage_returns(file, launches.launches)),
            suppressions=suppressions(file),
            written=script.written,
            numbers=launches.numbers,
        )
        return without_secrets(reading, secrets_of(script.commands))


def _is_there(claim: Claim, tree: Tree) -> bool:
    """Return whether a folder that the script makes is in the tree already."""
    made = claim.alternatives if claim.quantity == "directory_made" else ()
    found = [tree.resolve(str(path), relative_to=claim.span.path) for path in made]
    return any(target and tree.names(target) for target in found)


def startable(files: Iterable[SourceFile]) -> frozenset[str]:
    """Return the paths of the scripts that may launch something: directly, or through another script.

    Evaluating a script costs a hundred times as much as searching it for words, and most scripts of a repository build,
    install or clean up.
    """
    texts = {file.path: file.text for file in files}
    found = {path for path, text in texts.items() if _LAUNCHING.search(text)}
    mentions = {path: set(_SCRIPT_NAMES.findall(text)) for path, text in texts.items() if path not in found}
    wanted = {path.rpartition("/")[2] for path in found}
    while wanted:
        newly_found = {path for path, names in mentions.items() if path not in found and names & wanted}
        found |= newly_found
        wanted = {path.rpartition("/")[2] for path in newly_found}
    return frozenset(found)


def _carriage_returns(file: SourceFile, launches: Iterable[Launch]) -> Iterator[Note]:
    """Yield a single note about Windows line endings on the launch lines of a file.

    Lines on which they have no effect are skipped: the carriage return is part of a comment, is a separate command
    after `&` or `;`, or follows a number, from which programs strip it like blanks.
    """
    if "\r" not in file.text:
        return
    lines = file.text.split("\n")
    for span in sorted(launch.span for launch in launches if launch.span.path == file.path):
        line = lines[span.line - 1]
        if not line.endswith("\r") or _HARMLESS_RETURN.search(line[span.column - 1 :]):
            continue
        is_value = _VALUE_LAST.search(line[span.column - 1 :]) is not None
        yield Note(
            NoteKind.LINE_ENDING,
            "this line ends in a carriage return (Windows line endings), which the shell treats as part of the last"
            " word" + (", the value of an option" if is_value else ""),
            Span(file.path, span.line, span.column, span.line, len(line), span.snippet),
            detail=NoteDetail.OPTION_VALUE if is_value else None,
        )
        return


#: `export NCCL_IB-DISABLE=1`: a letter, then an intended name with a character that no name may contain.
_EXPORTED = re.compile(
    r"^[ \t]*export[ \t]+(?P<assignment>"
    r"(?P<name>[A-Za-z_$][\w${}]{0,60}[-.][\w.${}-]{0,60})=(?P<value>[^\s;&|]{0,80}))",
    re.MULTILINE,
)
_NAME = re.compile(r"[A-Za-z_]\w{0,100}", re.ASCII)
#: The beginning of a here-document, whose content is not run.
_HEREDOC = re.compile(r"<<-?[ \t]*[\"']?([A-Za-z_]\w*)[\"']?")
_READ = re.compile(r"\$\{?(SLURM_[A-Z0-9_]+)")
# The lookbehind comes second, so that the search jumps from one `SLURM_` to the next.
_ASSIGNED = re.compile(r"SLURM_(?<![\w$]SLURM_)[A-Z0-9_]+(?=\+?=)")
_READ_OR_UNSET = re.compile(r"\b(?:read|unset)\s+(?:-\w+\s+)*(SLURM_[A-Z0-9_]+)")


def rejected_exports(file: SourceFile, scope: Scope) -> Iterator[Claim]:
    """Yield a claim for each exported name that the shell rejects: `export NCCL_IB-DISABLE=1` sets nothing."""
    if "export" not in file.text:
        return
    places: Places | None = None
    for match in _EXPORTED.finditer(file.text):
        if _is_in_heredoc(file.text, match.start()):
            continue
        places = places or Places(file.path, file.text)
        span = places.span(match.start("assignment"), match.end("assignment"))
        name = match["name"]
        value = Unresolved("a variable in the name") if "$" in name else Known(name)
        yield Claim("refused_variable", value, span, match["assignment"], "shell", scope)


#: `export NAME= value`: the shell exports an empty NAME, and takes `value` for the name of another variable. If `value`
#: is a valid name, that may be meant.
_EMPTY_EXPORT = re.compile(
    r"^[ \t]*export[ \t]+(?P<name>[A-Za-z_]\w{0,100})=[ \t]+(?![A-Za-z_]\w*[ \t]*(?:$|[;&|]))[^\s=#;&|]+[ \t]*$",
    re.MULTILINE,
)


def blanks_in_assignments(commands: Iterable[Command], file: SourceFile, scope: Scope) -> Iterator[Claim]:
    """Yield a claim for `NAME = value` and `export NAME= value` of variables that the script uses; they set nothing."""
    seen: set[Span] = set()
    for command in commands:
        name, sign, value, *_ = [*(word.spelling for word in command.words[:3]), "", "", ""]
        if not sign.startswith("=") or sign.startswith("==") or not (sign[1:] or value) or command.span in seen:
            continue
        if _NAME.fullmatch(name) and re.search(rf"\$\{{?{name}\b", file.text):
            seen.add(command.span)
            spelling = f"{name} {sign} {value}"
            claim = Claim("blank_in_assignment", Known(name), command.span, spelling, "shell", scope)
            yield replace(claim, condition=command.condition)
    for match in _EMPTY_EXPORT.finditer(file.text) if "export" in file.text else ():
        if not _is_in_heredoc(file.text, match.start()):
            span = Places(file.path, file.text).span(match.start("name"), match.end())
            yield Claim("blank_in_assignment", Known(match["name"]), span, match[0].strip(), "shell", scope)


#: `test "$(nvidia-smi -L | wc -l)" -eq 8`
_TESTED_GPUS = re.compile(r"nvidia-smi [^|\n]*\| *wc -l *\)\"? *(?:-eq|-ne|-lt|-ge|==|!=) *\"?(?P<count>\d+)\b")


def tested_gpus(file: SourceFile, scope: Scope) -> Iterator[Claim]:
    """Yield a claim for each number with which the script compares the GPUs of its host."""
    for match in _TESTED_GPUS.finditer(file.text) if "nvidia-smi" in file.text else ():
        span = Places(file.path, file.text).span(match.start(), match.end())
        yield Claim("gpus_tested", Known(int(match["count"])), span, match[0], "shell", scope)


#: `NAME=value;` or `NAME=value&` directly before the next word.
_CUT_VALUE = re.compile(r"(?:^|[\s;&])(?P<name>[A-Za-z_]\w*)=(?P<value>[^\s;&|\"'()$`]+)[;&]$")
_NUMBER = re.compile(r"\d+")


def cut_values(commands: Iterable[Command], scope: Scope) -> Iterator[Claim]:
    """Yield a claim for each list without quotes that a `;` or `&` ends: `NCCL_IB_HCA=mlx5_0:1;mlx5_3:1`.

    The next word is the rest of the list if it looks like the part before it, except for numbers.
    """
    for command in commands:
        at, word = command.span.column - 1, command.words[0].spelling if command.words else ""
        match = _CUT_VALUE.search(command.span.snippet[:at])
        if match is None or len(command.words) != 1:
            continue
        last = re.split(r"[,;&]", match["value"])[-1]
        if _NUMBER.sub("0", last) != _NUMBER.sub("0", word) and not (last.startswith("/") and word.startswith("/")):
            continue
        start = at - len(match["value"]) - len(match["name"]) - 2
        span = replace(command.span, column=start + 1)
        spelling = command.span.snippet[start : at + len(word)]
        claim = Claim("cut_value", Known(match["name"]), span, spelling, "shell", scope)
        yield replace(claim, condition=command.condition)


#: A line that goes on, comments below it, and a line of its own that the command was meant to have.
_CUT_COMMAND = re.compile(r"(?<=\\\n)(?:[ \t]*#[^\n]*\n)+(?=[ \t]*-)|(?<=\\\n)[ \t]*#[^\n]*\\\n(?=[ \t]*[^\s#])")


def comments_in_commands(file: SourceFile, scope: Scope) -> Iterator[Claim]:
    """Yield a claim for each comment between the lines of one command; its value is the first line of the command."""
    if "\\\n" not in file.text or "#" not in file.text:
        return
    lines = file.text.split("\n")
    places = Places(file.path, file.text)
    for match in _CUT_COMMAND.finditer(file.text):
        if _is_in_heredoc(file.text, match.start()):
            continue
        number = places.line(match.start())
        first = number - 1
        while first > 1 and lines[first - 2].endswith("\\"):
            first -= 1
        if lines[first - 1].lstrip().startswith("#"):
            continue
        line = lines[number - 1]
        at = match.start() + len(line) - len(line.lstrip())
        span = places.span(at, at + len(line.strip()))
        yield Claim("comment_in_command", Known(first), span, line.strip()[:100], "shell", scope)


#: `export NAME=value` on a line of its own, with a constant value.
_CONSTANT = re.compile(r"export[ \t]+(?P<name>[A-Za-z_]\w*)=(?P<value>[^\s;&|$`()]+)[ \t]*(?:#.*)?")


def overwritten_exports(file: SourceFile, scope: Scope) -> Iterator[Claim]:
    """Yield a claim for each constant that the script exports and, with only exports between, replaces."""
    if file.text.count("export") < 2:
        return
    places: Places | None = None
    block: dict[str, tuple[str, int, int]] = {}
    start = 0
    for line in file.text.split("\n"):
        match = _CONSTANT.fullmatch(line.rstrip("\r"))
        if match is not None:
            name, value = match["name"], match["value"]
            old = block.get(name)
            if old is not None and old[0] != value and not _is_in_heredoc(file.text, start):
                places = places or Places(file.path, file.text)
                reason = Claim(
                    "overwritten_export", Known(name), places.span(start, start + len(line)), line, "shell", scope
                )
                spelling = file.text[old[1] : old[2]]
                span = places.span(old[1], old[2])
                yield Claim("overwritten_export", Known(name), span, spelling, "shell", scope, because=(reason,))
            block[name] = (value, start, start + match.end("value"))
        elif line.strip() and not line.lstrip().startswith("#"):
            block = {}
        start += len(line) + 1


def produced_hostfiles(script: Script, references: Iterable[Reference], scope: Scope) -> Iterator[Claim]:
    """Yield a claim for each hostfile of a launch that the script itself writes before, whatever its content."""
    for reference in references:
        if reference.role == "hostfile" and posixpath.basename(reference.target) in script.produced:
            yield Claim("produced_hostfile", Known(reference.target), reference.span, reference.target, "shell", scope)


#: The file that `envsubst` reads, for all names.
_FILLED_IN = re.compile(
    r"\benvsubst[ \t]*<[ \t]*[\"']?(?P<path>[\w./-]+)"
    r"|\bcat[ \t]+[\"']?(?P<piped>[\w./-]+)[\"']?[ \t]*\|[ \t]*envsubst[ \t]*\|"
)
#: A name that `envsubst` replaces; with a default it replaces nothing.
_PLACEHOLDER = re.compile(r"\$(?:\{(?P<braced>[A-Za-z_]\w*)\}|(?P<bare>[A-Za-z_]\w*))")
#: Variables that every session has.
_OF_SESSIONS = frozenset(("HOME", "USER", "PATH", "PWD", "HOSTNAME", "SHELL", "LOGNAME", "LANG", "TMPDIR", "UID"))
#: What may set variables that the text does not show.
_SETS_OTHERS = re.compile(
    r"^[ \t]*(?:source|\.|eval)[ \t]|\bset -\w*a|allexport|export[ \t]+\$|\bxargs\b", re.MULTILINE
)
#: So many names of a manifest have to be exported before another one counts as forgotten.
_MIN_EXPORTED = 2


def unset_placeholders(commands: Iterable[Command], file: SourceFile, tree: Tree, scope: Scope) -> Iterator[Claim]:
    """Yield a claim for each name in a manifest that `envsubst` replaces by nothing, because the script exports most of
    the manifest's names, and not this one: `envsubst < job.yaml | kubectl apply -f -`.
    """
    if "envsubst" not in file.text or _SETS_OTHERS.search(file.text):
        return
    lines = file.text.split("\n")
    seen: set[str] = set()
    for command in commands:
        line = lines[command.span.line - 1] if 0 < command.span.line <= len(lines) else ""
        given = _FILLED_IN.search(line) if "kubectl" in line else None
        if given is None:
            continue
        target = tree.resolve(given["path"] or given["piped"], relative_to=file.path)
        manifest = tree.read(target) if target is not None else None
        if not isinstance(manifest, SourceFile) or manifest.path in seen:
            continue
        seen.add(manifest.path)
        used: dict[str, re.Match[str]] = {}
        for match in _PLACEHOLDER.finditer(manifest.text):
            before = manifest.text[manifest.text.rfind("\n", 0, match.start()) + 1 : match.start()]
            if "#" not in before and not before.endswith("$"):
                used.setdefault(match["braced"] or match["bare"], match)
        exported = used.keys() & command.environment.keys()
        missing = [name for name in used if name not in exported | _OF_SESSIONS]
        if len(exported) < _MIN_EXPORTED or len(missing) >= len(exported):
            continue
        because = Claim("placeholder_unset", Known(manifest.path), command.span, given[0], "shell", scope)
        places = Places(manifest.path, manifest.text)
        for name in missing:
            # A name that the script reads is its caller's.
            if re.search(rf"\$\{{?{name}\b", file.text) is None:
                match = used[name]
                span = places.span(match.start(), match.end())
                claim = Claim("placeholder_unset", Known(name), span, match[0], "shell", scope, because=(because,))
                yield replace(claim, condition=command.condition)


def _is_in_heredoc(text: str, at: int) -> bool:
    """Return whether the last here-document before an offset is still open there."""
    before = text[max(0, at - 20_000) : at]
    opened = list(_HEREDOC.finditer(before))
    return bool(opened) and re.search(rf"^\s*{opened[-1][1]}$", before[opened[-1].end() :], re.MULTILINE) is None


def slurm_variables_read(file: SourceFile, scope: Scope) -> Iterator[Claim]:
    """Yield a claim for each Slurm variable that the script reads and does not set, at its first use."""
    if "SLURM_" not in file.text:
        return
    skipped = {*_ASSIGNED.findall(file.text), *_READ_OR_UNSET.findall(file.text)}
    places = Places(file.path, file.text)
    start = 0
    for line in file.text.split("\n"):
        for match in _READ.finditer(line) if "SLURM_" in line and not line.lstrip().startswith("#") else ():
            name = match.group(1)
            if name in skipped:
                continue
            skipped.add(name)
            end = match.end() + (line[match.end() : match.end() + 1] == "}")
            span = places.span(start + match.start(), start + end)
            spelling = line[match.start() : end]
            yield Claim("variable_read", Known(name), span, spelling, "shell", scope=scope, strength=Strength.FLAG)
        start += len(line) + 1
