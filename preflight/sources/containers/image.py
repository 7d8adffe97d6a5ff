"""Dockerfiles: the environment of their last stage, and the command of the image.

Instructions as in the Dockerfile reference (BuildKit 0.20): continued lines, both forms of ENV, CMD and ENTRYPOINT in
shell form and in exec form. Of the build only the packages that `RUN` installs are read: it changes the image, not the
launch.
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from preflight._util.budget import note_skipped, spend
from preflight.model.job import Claim, Known, Scope, Strength, Unresolved, Value
from preflight.sources.base import Command, Reading, SourceFile, Tree
from preflight.sources.formats.claim_redaction import secrets_of, without_secrets
from preflight.sources.formats.comments import suppressions
from preflight.sources.shell.shell_document import FileText, Hole, Lit, Piece, Place, Text
from preflight.sources.shell.state import Kind, Slot

_INSTRUCTION = re.compile(r"[ \t]*(?P<word>[A-Za-z]+)[ \t]+")
_STAGE = re.compile(r"(?:--platform=\S+[ \t]+)?(?P<image>\S+)(?:[ \t]+[Aa][Ss][ \t]+(?P<name>\S+))?")
_PAIR = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<value>\"(?:[^\"\\]|\\.)*\"|'[^']*'|(?:[^\s\\]|\\.)*)", re.DOTALL)
_OLD_PAIR = re.compile(r"(?P<name>[A-Za-z_]\w*)[ \t]+(?P<value>\S.*)", re.DOTALL)
_STRING = re.compile(r"\"((?:[^\"\\]|\\.)*)\"")
_VARIABLE = re.compile(r"\$(?:\{[^{}\n]{1,200}\}|[A-Za-z_]\w*)")
_HEREDOC = re.compile(r"<<-?[\"']?(\w+)[\"']?")
#: Variables that are worth claiming even if the image's command is unknown.
_RANK_VARIABLES = re.compile(
    r"(?:NCCL|GLOO|UCX|FI|RCCL|TORCH_NCCL|OMPI_MCA|HOROVOD)_[A-Z]|MASTER_ADDR$|WORLD_SIZE$|RANK$"
)
_VERSION = re.compile(r".*_(?:VERSION|VER|TAG|REPO|HOME|DIR|PATH|URL|BRANCH)$")
_INSTALLING = re.compile(r"\b(?:pip3?|conda|mamba|uv)\b[^\n]*\binstall\b")
_MAX_INSTRUCTIONS = 3000


@dataclass(slots=True)
class _Stage:
    """One `FROM`: its base, its variables and its command."""

    base: tuple[int, int] | None = None
    variables: dict[str, Slot] = field(default_factory=dict)
    entrypoint: tuple[int, int] | None = None
    command: tuple[int, int] | None = None
    runs: list[tuple[int, int]] = field(default_factory=list)


def read_image(file: SourceFile, tree: Tree, scope: Scope) -> Reading:
    """State the variables of the last stage, and the launch that the image runs."""
    from preflight.sources.launchers.launch_lines import read_commands
    from preflight.sources.shell.evaluator import evaluate_code, evaluate_words

    text = FileText(file.path, file.text)
    stage = _last_stage(text)
    reading = Reading()
    commands: tuple[Command, ...] = ()
    ran = stage.entrypoint or stage.command
    if ran is not None:
        place = Place(text, *ran)
        words = _exec_form(text, ran)
        if words is None:
            code: Text = (Lit(text.text[ran[0] : ran[1]], place),)
            script = evaluate_code(file, tree, code, stage.variables, place)
        else:
            if stage.entrypoint is not None and stage.command is not None:
                words += _exec_form(text, stage.command) or []
            script = evaluate_words(file, tree, words, stage.variables, place)
        commands = script.commands
        reading = read_commands(commands, {}, tree, batch=False)
        reading = replace(reading, references=(*script.references, *reading.references))
    if not reading.launches:
        reading = Reading(claims=tuple(_variables(stage, scope)))
    installs = _installs(file, tree, text, stage)
    reading = replace(
        reading, claims=(*reading.claims, *installs.claims), references=(*reading.references, *installs.references)
    )
    if reading.claims and stage.base is not None:
        reading = replace(reading, claims=(_base(text, stage.base, scope), *reading.claims))
    return without_secrets(replace(reading, suppressions=suppressions(file)), secrets_of(commands))


def _installs(file: SourceFile, tree: Tree, text: FileText, stage: _Stage) -> Reading:
    """The frameworks that the build installs into the image."""
    from preflight.sources.launchers.installs import read_installs
    from preflight.sources.shell.evaluator import evaluate_code

    commands: list[Command] = []
    for start, end in stage.runs:
        if _INSTALLING.search(text.text, start, end) and not text.text[start:end].lstrip().startswith(("[", "<<")):
            place = Place(text, start, end)
            # Options of the instruction itself: `RUN --mount=type=cache,target=/root/.cache pip install torch`.
            skipped = re.match(r"(?:\s*--(?:mount|network|security)=\S+)*", text.text[start:end])
            start += skipped.end() if skipped is not None else 0
            code: Text = (Lit(text.text[start:end], Place(text, start, end)),)
            commands.extend(evaluate_code(file, tree, code, stage.variables, place).commands)
    found = read_installs(commands, tree)
    claims = tuple(replace(claim, source="image") for claim in found.claims if claim.quantity != "installing_line")
    return Reading(claims=claims, references=found.references)


def _base(text: FileText, span: tuple[int, int], scope: Scope) -> Claim:
    image = text.text[slice(*span)]
    value: Value = Known(image)
    if "$" in image or "{{" in image:
        value = Unresolved(f"{image} is known when the image is built")
    return Claim("image_base", value, text.span(*span), f"FROM {image}", "dockerfile", scope, Strength.CONFIG)


def _variables(stage: _Stage, scope: Scope) -> Iterator[Claim]:
    for name, slot in stage.variables.items():
        if _RANK_VARIABLES.match(name) and not _VERSION.match(name):
            spelling = f"{name}={slot.spelling()}"
            yield Claim(
                f"env.{name}", slot.value(), slot.place.span, spelling, "dockerfile", scope, Strength.ENVIRONMENT
            )


def _last_stage(text: FileText) -> _Stage:
    stages: dict[str, _Stage] = {}
    stage = _Stage()
    for word, start, end in _instructions(text.text):
        if word == "FROM":
            match = _STAGE.match(text.text, start, end)
            image = match["image"].lower() if match is not None else ""
            before = stages.get(image)
            stage = _Stage(match.span("image") if match is not None else None)
            if before is not None:
                stage = _Stage(before.base, dict(before.variables), before.entrypoint, before.command, [*before.runs])
            if match is not None and match["name"]:
                stages[match["name"].lower()] = stage
        elif word == "ENV":
            stage.variables.update(_pairs(text, start, end, stage.variables))
        elif word == "RUN":
            stage.runs.append((start, end))
        elif word == "CMD":
            stage.command = (start, end)
        elif word == "ENTRYPOINT":
            stage.entrypoint = (start, end)
    return stage


#: Blanks after a backslash that continues a line.
_MAX_BLANK_LENGTH = 256


def _instructions(text: str) -> Iterator[tuple[str, int, int]]:
    """The keyword of each instruction, and the start and end of its arguments, including continued lines."""
    at, count = 0, 0
    while at < len(text) and count < _MAX_INSTRUCTIONS:
        count += 1
        if count == _MAX_INSTRUCTIONS:
            note_skipped(f"only the first {_MAX_INSTRUCTIONS} lines of instructions were read")
        end = _line_end(text, at)
        line = text[at:end].strip()
        match = _INSTRUCTION.match(text, at, end)
        if not line or line.startswith("#") or match is None:
            at = end + 1
            continue
        # Only its end is examined: an instruction may span any number of lines.
        while text[max(at, end - _MAX_BLANK_LENGTH) : end].rstrip().endswith("\\") and end < len(text):
            end = _line_end(text, end + 1)
            # A comment between continued lines is skipped, and does not end them.
            while text[text.rfind("\n", 0, end) + 1 : end].lstrip().startswith("#") and end < len(text):
                end = _line_end(text, end + 1)
        yield match["word"].upper(), match.end(), end
        at = end + 1
        heredoc = _HEREDOC.search(text, match.end(), end) if match["word"].upper() in ("RUN", "COPY") else None
        if heredoc is not None:
            closing = re.compile(rf"^\t*{heredoc[1]}[ \t]*\r?$", re.MULTILINE).search(text, at)
            at = _line_end(text, closing.start()) + 1 if closing is not None else len(text)


def _line_end(text: str, start: int) -> int:
    end = text.find("\n", start)
    return end if end >= 0 else len(text)


def _pairs(text: FileText, start: int, end: int, known: dict[str, Slot]) -> dict[str, Slot]:
    """`ENV A=1 B="2"`, and the old `ENV A 1`."""
    found: dict[str, Slot] = {}
    if _PAIR.match(text.text, start, end):
        matches = list(_PAIR.finditer(text.text, start, end))
    else:
        old = _OLD_PAIR.match(text.text, start, end)
        matches = [old] if old is not None else []
    for match in matches:
        first, last = match.span("value")
        while last > first and text.text[last - 1] in " \t\r":
            last -= 1
        if text.text[first : first + 1] in ("'", '"') and last - first > 1:
            first, last = first + 1, last - 1
        place = Place(text, first, last)
        found[match["name"]] = Slot(Kind.TEXT, place, tuple(_expand(place, ChainMap(found, known))), exported=True)
    return found


def _expand(place: Place, known: Mapping[str, Slot]) -> Iterator[Piece]:
    """The value with variables of earlier lines expanded; the value of a build argument is unknown."""
    text = place.file.text
    at = place.start
    for match in _VARIABLE.finditer(text, place.start, place.end):
        if match.start() > at:
            yield Lit(text[at : match.start()], Place(place.file, at, match.start()))
        here = Place(place.file, *match.span())
        slot = known.get(match[0].strip("${}"))
        value = slot.value() if slot is not None else Unresolved("")
        if isinstance(value, Known):
            # `ENV A=$A$A` doubles with every line.
            spend(1 + len(str(value.value)) // 256)
            yield Lit(str(value.value), here, False, match[0])
        else:
            yield Hole(f"{match[0]} is known when the image is built", here, match[0])
        at = match.end()
    if at < place.end:
        yield Lit(text[at : place.end], Place(place.file, at, place.end))


def _exec_form(text: FileText, span: tuple[int, int]) -> list[Text] | None:
    """The words of `["a", "b"]`; None for the shell form."""
    written = text.text[span[0] : span[1]].strip()
    if not (written.startswith("[") and written.endswith("]")):
        return None
    words: list[Text] = []
    for match in _STRING.finditer(text.text, *span):
        place = Place(text, match.start(1), match.end(1))
        plain = re.sub(r"\\(.)", r"\1", match[1])
        words.append((Lit(plain, place, plain == match[1]),))
    return words
