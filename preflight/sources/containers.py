"""Dockerfiles (the environment and command of an image), and Compose files (services and the resources of containers).

Instructions as in the Dockerfile reference (BuildKit 0.20): continued lines, both forms of ENV, CMD and ENTRYPOINT in
shell form and in exec form. Of the build, only the packages that `RUN` installs are read: the build changes the image,
not the launch.

Keys as in the Compose specification (compose-spec, 2025). Claims about a service have the scope of the launch it runs,
or a separate scope.
"""

from __future__ import annotations

import posixpath
import re
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from preflight._util.budget import note_skipped, spend, truncate
from preflight.model.job import (
    WHOLE_JOB,
    Claim,
    Known,
    Note,
    NoteKind,
    Reference,
    Scope,
    Span,
    Strength,
    Unresolved,
    Value,
    as_int,
    lift,
)
from preflight.sources.base import Command, Reading, SourceFile, Tree, caller_origin, suppressions
from preflight.sources.configs.line_files import variables_in
from preflight.sources.configs.packages import claims as claims_of
from preflight.sources.configs.packages import package_of_image
from preflight.sources.formats.structured import Kind, Member, Node, NodeClaims, code_of, value_of
from preflight.sources.launchers.launch_context import mebibytes, read_installs
from preflight.sources.secrets import secrets_of, without_secrets
from preflight.sources.shell.evaluator import evaluate_code, evaluate_words
from preflight.sources.shell.shell_document import FileText, Hole, Lit, Piece, Place, Text
from preflight.sources.shell.state import Kind as SlotKind
from preflight.sources.shell.state import Slot, place_of, slots_from_environment
from preflight.sources.shell.words import hole, replace_spans

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
    """Read the variables of the last stage, and the launch that the image runs."""
    from preflight.sources.launchers.launch_lines import read_commands

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
    reading = reading.joined(_installs(file, tree, text, stage))
    if reading.claims and stage.base is not None:
        base = _base(text, stage.base, scope)
        package = package_of_image(text.text[slice(*stage.base)])
        wheels = claims_of(package, base.span, base.spelling, "image", scope=scope) if package is not None else ()
        reading = replace(reading, claims=(base, *wheels, *reading.claims))
    return without_secrets(replace(reading, suppressions=suppressions(file)), secrets_of(commands))


def _installs(file: SourceFile, tree: Tree, text: FileText, stage: _Stage) -> Reading:
    """Return the frameworks that the build installs into the image."""
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
        value = Unresolved(f"{image} is known only when the image is built")
    return Claim("image_base", value, text.span(*span), f"FROM {image}", "dockerfile", scope, Strength.CONFIG)


def _variables(stage: _Stage, scope: Scope) -> Iterator[Claim]:
    for name, slot in stage.variables.items():
        if _RANK_VARIABLES.match(name) and not _VERSION.match(name):
            spelling = f"{name}={slot.spelling()}"
            span = slot.place.span
            yield Claim(f"env.{name}", slot.value(), span, spelling, "dockerfile", scope, Strength.ENVIRONMENT)


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
    """Yield the keyword of each instruction, and the start and end of its arguments, including continued lines."""
    at, count = 0, 0
    while at < len(text) and count < _MAX_INSTRUCTIONS:
        count += 1
        if count == _MAX_INSTRUCTIONS:
            note_skipped(f"only the first {_MAX_INSTRUCTIONS} instruction lines were read")
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
    """Return `ENV A=1 B="2"`, and the old `ENV A 1`."""
    found: dict[str, Slot] = {}
    if _PAIR.match(text.text, start, end):
        matches = list(_PAIR.finditer(text.text, start, end))
    else:
        matches = list(filter(None, (_OLD_PAIR.match(text.text, start, end),)))
    for match in matches:
        first, last = match.span("value")
        while last > first and text.text[last - 1] in " \t\r":
            last -= 1
        if text.text[first : first + 1] in ("'", '"') and last - first > 1:
            first, last = first + 1, last - 1
        place = Place(text, first, last)
        found[match["name"]] = Slot(SlotKind.TEXT, place, tuple(_expand(place, ChainMap(found, known))), exported=True)
    return found


def _expand(place: Place, known: Mapping[str, Slot]) -> Iterator[Piece]:
    """Yield the value with variables of earlier lines expanded; the value of a build argument is unknown."""
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
            yield Hole(f"{match[0]} is known only when the image is built", here, match[0])
        at = match.end()
    if at < place.end:
        yield Lit(text[at : place.end], Place(place.file, at, place.end))


def _exec_form(text: FileText, span: tuple[int, int]) -> list[Text] | None:
    """Return the words of `["a", "b"]`; None for the shell form."""
    written = text.text[span[0] : span[1]].strip()
    if not (written.startswith("[") and written.endswith("]")):
        return None
    words: list[Text] = []
    for match in _STRING.finditer(text.text, *span):
        place = Place(text, match.start(1), match.end(1))
        plain = re.sub(r"\\(.)", r"\1", match[1])
        words.append((Lit(plain, place, plain == match[1]),))
    return words


_INTERPOLATION = re.compile(r"(?<!\$)\$(?:\{[^{}\n]{1,200}\}|[A-Za-z_]\w*)")
_GPU_DEVICE = re.compile(r"/dev/nvidia|nvidia\.com/gpu|/dev/kfd|/dev/dri|/dev/davinci|/dev/accel")
_MAX_SERVICES = 200
_MAX_NOTES = 10


def read_services(file: SourceFile, tree: Tree) -> Reading:
    """Read the resources and the command of each service in a Compose file."""
    from preflight.sources.formats import lenient_yaml

    document = lenient_yaml.parse(file.text)
    services = _Services(file, tree)
    root = document.root.at("services") if document.root is not None else None
    for member in truncate(root.in_force, _MAX_SERVICES, "services") if root is not None else ():
        if member.node.kind is Kind.OBJECT:
            services.read(member)
    places = services.node_claims.places
    notes = [
        Note(NoteKind.MALFORMED, f"{file.path}: {fault.message}", places.span(fault.start, fault.end))
        for fault in document.faults[:_MAX_NOTES]
    ]
    reading = Reading(tuple(services.node_claims.claims), notes=tuple(notes), suppressions=suppressions(file))
    reading = reading.joined(services.reading)
    return without_secrets(reading, secrets_of(services.commands))


@dataclass(slots=True)
class _Services:
    """The state of reading one Compose file."""

    file: SourceFile
    tree: Tree
    reading: Reading = field(default_factory=Reading)
    commands: list[Command] = field(default_factory=list)
    node_claims: NodeClaims = field(init=False)
    _text: FileText = field(init=False)

    def __post_init__(self) -> None:
        self.node_claims = NodeClaims(self.file, "compose")
        self._text = FileText(self.file.path, self.file.text)

    def read(self, service: Member) -> None:
        """Add claims for one service."""
        from preflight.sources.launchers.launch_lines import read_commands

        node = service.node
        files = tuple(self._environment_files(node.at("env_file")))
        environment = {**self._of_files(files), **dict(self._environment(node.at("environment")))}
        found = Reading()
        words = [*self._words(node.at("entrypoint")), *self._words(node.at("command"))]
        code = self._code(node.at("command")) if node.at("entrypoint") is None else None
        place = Place(self._text, service.key_start, service.key_end)
        script = None
        if code is not None:
            script = evaluate_code(self.file, self.tree, code, environment, place)
        elif words:
            script = evaluate_words(self.file, self.tree, words, environment, place)
        if script is not None:
            self.commands.extend(script.commands)
            found = read_commands(script.commands, {}, self.tree, batch=False)
            found = replace(found, references=(*script.references, *found.references))
        own = Scope(launch=f"{self.file.path}:{self.node_claims.places.line(service.key_start)}")
        for scope in [launch.scope for launch in found.launches] or [own]:
            self._state_resources(service, scope)
            of_files = (Reference(target, "environment", span, scope) for target, span in files)
            found = replace(found, references=(*found.references, *of_files))
        self.reading = self.reading.joined(found)

    def _environment_files(self, node: Node | None) -> Iterator[tuple[str, Span]]:
        """Yield the paths of `env_file`: a path, a list of paths, or a list of `path` and `required`; the last one
        wins.
        """
        for item in (node.items or (node,)) if node is not None else ():
            path = item.at("path") if item.kind is Kind.OBJECT else item
            required = item.at("required") if item.kind is Kind.OBJECT else None
            if path is None or not path.text():
                continue
            span = self.node_claims.places.span(path.start, path.end)
            target = self.tree.resolve(path.text(), relative_to=self.file.path) if path.kind is Kind.SCALAR else None
            if target is not None and isinstance(self.tree.read(target), SourceFile):
                yield target, span
            elif required is None or required.value is not False:
                message = f"env_file {path.text()} is not in the tree; its variables are unknown"
                self._note(Note(NoteKind.MISSING, message, span))

    def _note(self, note: Note) -> None:
        self.reading = self.reading.joined(Reading(notes=(note,)))

    def _of_files(self, files: Sequence[tuple[str, Span]]) -> dict[str, Slot]:
        found: dict[str, Slot] = {}
        for target, _ in files:
            file = self.tree.read(target)
            if isinstance(file, SourceFile):
                for variable in variables_in(file):
                    place = place_of(variable, FileText(file.path, file.text))
                    found.update(slots_from_environment({variable.name: variable}, place))
        return found

    def _environment(self, node: Node | None) -> Iterator[tuple[str, Slot]]:
        """Yield `NAME: value` or `- NAME=value`; the shell that runs Compose supplies the value of a name without
        one.
        """
        for member in node.in_force if node is not None else ():
            yield member.key, self._slot(member.key, member.node)
        for item in node.items if node is not None else ():
            text = code_of(self._text, item)
            name, equals, _ = str(item.value).partition("=")
            if equals and text and isinstance(text[0], Lit) and "=" in text[0].text:
                at = text[0].text.index("=") + 1
                pieces: Text = (text[0].cut(at, len(text[0].text)), *text[1:])
                place = Place(self._text, item.start, item.end)
                yield name, Slot(SlotKind.TEXT, place, _unresolve_interpolations(pieces), exported=True)
            elif name and not equals:
                yield name, self._slot(name, None, item)

    def _slot(self, name: str, node: Node | None, item: Node | None = None) -> Slot:
        at = node or item
        assert at is not None
        place = Place(self._text, at.start, at.end)
        if node is None or node.value is None:
            text = hole(f"${name}, which the caller sets", place, name, origin=caller_origin(name))
            return Slot(SlotKind.TEXT, place, text, exported=True)
        return Slot(SlotKind.TEXT, place, _unresolve_interpolations(code_of(self._text, node)), exported=True)

    def _words(self, node: Node | None) -> list[Text]:
        if node is None or node.kind is not Kind.ARRAY:
            return []
        return [_unresolve_interpolations(code_of(self._text, item)) for item in node.items]

    def _code(self, node: Node | None) -> Text | None:
        """Return a command written as one string: split at blanks as by a shell, with Compose's own variables
        unresolved.
        """
        if node is None or node.kind not in (Kind.SCALAR, Kind.TEMPLATE) or node.value is None:
            return None
        return _unresolve_interpolations(code_of(self._text, node))

    def _state_resources(self, service: Member, scope: Scope) -> None:
        node_claims, node = self.node_claims, service.node
        key = Node(Kind.SCALAR, service.key_start, service.key_end, service.key)
        service = Member(service.key, service.key_start, service.key_end, key)
        image = node.member("image")
        name = value_of(image.node) if image is not None else Unresolved("built here")
        node_claims.add("container_run", name, image or service, scope=scope)
        command = node.member("command")
        if command is not None:
            text = " ".join(self.file.text[command.node.start : command.node.end].split())
            node_claims.add("container_command", Known(text.strip("[]\"'")[:1000]), command, scope=scope)
        self._state_gpus(node, scope)
        size, ipc = node.member("shm_size"), node.member("ipc")
        node_claims.add_member("shm_mib", size, lambda value: lift(mebibytes, value), scope=scope)
        if ipc is not None and ipc.node.value not in ("private", "none", "shareable"):
            why = Unresolved("the /dev/shm of the host, or of another container")
            node_claims.add("shm_mib", why, ipc, scope=scope)
        self._state_mounts(node, scope)
        network = node.member("network_mode")
        if network is not None:
            node_claims.add_member("container_network", network, scope=scope)
        else:
            # Compose gives the services of a file a network of their own, on which they find each other by name.
            node_claims.add("container_network", Known("compose"), service, scope=scope)
        memlock = node.member("ulimits", "memlock")
        if memlock is not None:
            node_claims.add("container_memlock", Known("memlock"), memlock, scope=scope)
        for item in node.items_at("cap_add"):
            member = Member("cap_add", item.start, item.end, item)
            node_claims.add("pod_capability", value_of(item), member, scope=scope)
        privileged = node.member("privileged")
        if privileged is not None and privileged.node.value is not False:
            node_claims.add("pod_capability", Known("privileged"), privileged, scope=scope)
            node_claims.add("container_gpus", Known("privileged"), privileged, scope=scope)

    def _state_gpus(self, node: Node, scope: Scope) -> None:
        node_claims = self.node_claims
        for device in node.items_at("deploy", "resources", "reservations", "devices"):
            member = device.member("capabilities") or device.member("driver")
            if member is None:
                continue
            node_claims.add("container_gpus", Known("reserved"), member, scope=scope)
            ids = device.at("device_ids")
            count = device.member("count")
            if ids is not None and ids.kind is Kind.ARRAY and (listed := device.member("device_ids")) is not None:
                node_claims.add("gpus_per_node", Known(len(ids.items)), listed, scope=scope)
            elif count is not None and count.node.value != "all":
                node_claims.add_member("gpus_per_node", count, as_int, scope=scope)
        gpus, runtime = node.member("gpus"), node.member("runtime")
        if gpus is not None:
            node_claims.add("container_gpus", Known("gpus"), gpus, scope=scope)
        elif runtime is not None and runtime.node.value != "runc":
            node_claims.add_member("container_gpus", runtime, scope=scope)
        for item in node.items_at("devices"):
            member = Member("devices", item.start, item.end, item)
            if _GPU_DEVICE.search(str(item.value)):
                node_claims.add("container_gpus", value_of(item), member, scope=scope)
            if "/dev/infiniband" in str(item.value):
                node_claims.add("host_path", value_of(item), member, scope=scope)

    def _state_mounts(self, node: Node, scope: Scope) -> None:
        for key in ("volumes", "tmpfs"):
            for item in node.items_at(key):
                text = str(item.value) if item.kind is Kind.SCALAR else item.text("target")
                if re.search(r"(?:^|:)/dev/shm(?:$|:)", text):
                    member = Member(key, item.start, item.end, item)
                    self.node_claims.add("shm_mib", Unresolved("a volume mounted there"), member, scope=scope)


def _unresolve_interpolations(text: Text) -> Text:
    """Return the text with Compose's `${NAME}` unresolved and its `$$` as one `$`."""
    pieces = replace_spans(
        text,
        lambda literal: (match.span() for match in _INTERPOLATION.finditer(literal)),
        lambda found: [Hole(f"{found.text} is filled in by Compose", found.place, found.text)],
    )
    halves = [half for piece in pieces for half in (_unescape_dollars(piece) if isinstance(piece, Lit) else (piece,))]
    return tuple(piece for piece in halves if not isinstance(piece, Lit) or piece.text)


def _unescape_dollars(piece: Lit) -> Iterator[Lit]:
    """Yield the parts of a text in which `$$`, Compose's notation for one `$`, is one `$`."""
    at = 0
    while (double := piece.text.find("$$", at)) >= 0:
        yield piece.cut(at, double + 1)
        at = double + 2
    yield piece.cut(at, len(piece.text))


# The sources of Compose files and Dockerfiles.


_COMPOSE_NAME = re.compile(r"(?:.*[-_.])?(?:docker-)?compose(?:[-_.].*)?\.ya?ml", re.IGNORECASE)
_SERVICES = re.compile(r"^services:[ \t]*(?:#.*)?\r?$", re.MULTILINE)


class ComposeSource:
    """Reads one Compose file."""

    name = "compose"
    roles = ()

    def recognises(self, file: SourceFile) -> bool:
        """Return whether the file has the name of a Compose file, and services."""
        return _COMPOSE_NAME.fullmatch(posixpath.basename(file.path)) is not None and bool(_SERVICES.search(file.text))

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """Read the resources and the command of each service."""
        return read_services(file, tree)


_DOCKERFILE_NAME = re.compile(
    r"(?:.*\.)?(?:dockerfile|containerfile)|(?:dockerfile|containerfile)(?:[._-].*)?", re.IGNORECASE
)
_FROM = re.compile(r"^[ \t]*FROM[ \t]+\S", re.IGNORECASE | re.MULTILINE)


def is_container_file(path: str) -> bool:
    """Return whether a file has the name of a Dockerfile or Containerfile."""
    return _DOCKERFILE_NAME.fullmatch(posixpath.basename(path)) is not None


class DockerfileSource:
    """Reads one Dockerfile; as a list of packages, only what its build installs."""

    name = "dockerfile"
    roles = ()

    def recognises(self, file: SourceFile) -> bool:
        """Return whether the file has the name of a Dockerfile and begins a build stage."""
        return is_container_file(file.path) and _FROM.search(file.text) is not None

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """Read the variables of the last stage, and the launch that the image runs."""
        reading = read_image(file, tree, scope)
        if role != "requirements":
            return reading
        packages = tuple(claim for claim in reading.claims if claim.quantity == "package")
        return Reading(packages, references=reading.references, suppressions=reading.suppressions)
