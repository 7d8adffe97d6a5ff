"""Task files of orchestrators that run one script on every node: SkyPilot, dstack, MosaicML's mcli.

Sources: sky/utils/schemas.py, sky/skylet/constants.py and accelerator_registry.py (SkyPilot 0.14);
core/models/configurations.py and resources.py (dstack 0.20); docs of mcli (compute, command, parameters).

Nothing is executed. The script is evaluated like any other; the variables that the orchestrator sets have the values
that the file requests, or are known only at run time.

Sources: the schemas of command jobs, command components and pipeline jobs of the CLI v2 (commandJob.schema.json,
commandComponent.schema.json, pipelineJob.schema.json), and azure-ai-ml 1.28, azure/ai/ml/entities/_job/distribution.py.
The variables of ranks are those that its guide to distributed GPU training lists.

Sources: docs/reference/training/experiment-config-reference of Determined 0.38; master/pkg/schemas/expconf.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from preflight._util import toml
from preflight._util.budget import truncate
from preflight.model.job import (
    WHOLE_JOB,
    Claim,
    Known,
    Launch,
    OneOf,
    Scope,
    Strength,
    Unresolved,
    Value,
    as_int,
    lift,
    one_of,
)
from preflight.model.job.value import Symbol
from preflight.sources.base import Command, Reading, SourceFile, Tree, caller_origin, suppressions
from preflight.sources.configs.framework_files import FRAMEWORKS, Framework, Key, keys_in_force, state_settings
from preflight.sources.formats.structured import Kind, Member, Node, NodeClaims, code_of, value_of
from preflight.sources.secrets import secrets_of, without_secrets
from preflight.sources.shell.evaluator import evaluate_code
from preflight.sources.shell.shell_document import Alt, FileText, Hole, Lit, Piece, Place, Text
from preflight.sources.shell.state import Kind as SlotKind
from preflight.sources.shell.state import Slot
from preflight.sources.shell.words import hole
from preflight.sources.value_readers import as_count, as_float, product_of

#: The value of a variable: one of the counts below, or a value known only at run time.
NODES, GPUS_PER_NODE, GPUS, WORLD = "nodes", "gpus_per_node", "gpus", "world"


@dataclass(frozen=True, slots=True)
class Accelerators:
    """GPUs of one node; `member` is where they are requested. `total`: of all nodes together."""

    member: Member
    count: Value
    kind: Value | None = None
    total: bool = False


@dataclass(frozen=True, slots=True)
class RanksPerNode:
    """The number of copies of the script that the orchestrator starts on each node, and the variables of each copy.

    `member` is where the number is requested; None if the file omits it. `total`: on all nodes together.
    """

    count: Value
    member: Member | None
    variables: dict[str, str | Symbol]
    total: bool = False


def _is_no_other_type(root: Node) -> bool:
    """Return whether dstack's file is a task, or has no type that dstack knows."""
    others = ("service", "dev-environment", "fleet", "volume", "gateway", "preset", "endpoint")
    return root.kind is Kind.OBJECT and root.text("type") not in others


def _the_file(root: Node) -> Iterator[Node]:
    yield root


@dataclass(frozen=True, slots=True)
class Orchestrator:
    """One kind of task file: a row of `orchestrators.toml`, whose head describes the other fields.

    Args:
        accelerators: reads the GPUs that the file requests.
        framework: the framework of the configuration in `parameters`.
        tasks: the tasks of a file; by default the file is one task.
        ranks: reads how many copies of the script start on each node; None where it starts once on each.
        has_settings: whether a file is one whose keys the tables of settings know.
    """

    name: str
    signs: tuple[re.Pattern[str], ...]
    code: str
    environment: tuple[str, ...]
    nodes: str
    accelerators: Callable[[Node], Accelerators | None]
    variables: dict[str, str | Symbol]
    others: tuple[re.Pattern[str], ...] = ()
    parameters: str = ""
    framework: Framework | None = None
    is_word_list: bool = False
    tasks: Callable[[Node], Iterator[Node]] = _the_file
    folder: str = ""
    inputs: str = ""
    ranks: Callable[[Node], RanksPerNode | None] | None = None
    suffixes: tuple[str, ...] = ()
    has_settings: Callable[[Node], bool] = lambda _: False


def task_role(name: str) -> str:
    """Return the role of a task file that a submit command of this orchestrator refers to."""
    return f"task of {name}"


_NAMED = re.compile(r"(?P<kind>[A-Za-z][\w.+ -]*?)(?::(?P<count>\d+(?:\.\d+)?))?")


def _sky(root: Node) -> Accelerators | None:
    """Return `A100:8`, `{A100: 8}`, `[A100:8, H100:8]` or a set of them, from which SkyPilot may choose.

    `gpus` is another name of `accelerators`.
    """
    resources = root.at("resources")
    member = (resources.member("accelerators") or resources.member("gpus")) if resources is not None else None
    choices = [item for key in ("any_of", "ordered") for item in root.items_at("resources", key)]
    others = [item.member("accelerators") or item.member("gpus") for item in choices if item.kind is Kind.OBJECT]
    listed = [found for found in (member, *others) if found is not None]
    offers = [offer for found in listed for offer in _sky_offers(found.node)]
    if not listed or not offers:
        return None
    if any(offer is None for offer in offers):
        return Accelerators(listed[0], Unresolved("accelerators that are filled in later"))
    counts = one_of(offer[1] for offer in offers if offer is not None)
    kinds = one_of(offer[0] for offer in offers if offer is not None)
    return Accelerators(listed[0], counts, kinds)


def _sky_offers(node: Node) -> list[tuple[str, int] | None]:
    if node.kind is Kind.OBJECT:
        return [_sky_offer(f"{member.key}:{member.node.value}") for member in node.in_force]
    if node.kind is Kind.ARRAY:
        return [_sky_offer(str(item.value)) if item.kind is Kind.SCALAR else None for item in node.items]
    if node.kind is Kind.SCALAR and node.value is not None:
        return [_sky_offer(str(node.value))]
    return [None] if node.kind is Kind.TEMPLATE else []


def _sky_offer(text: str) -> tuple[str, int] | None:
    found = _NAMED.fullmatch(text.removesuffix(":None").strip())
    if found is None:
        return None
    return found["kind"], math.ceil(float(found["count"] or 1))


#: `8`, `H100:8`, `H100:80GB:8`, `1..8`; a text of several parts has the count in one of them.
_RANGE = re.compile(r"(\d+)?\.\.(\d+)?")


def _dstack(root: Node) -> Accelerators | None:
    member = root.member("resources", "gpu")
    if member is None:
        return None
    node = member.node
    if node.kind is Kind.OBJECT:
        counted, kind = node.member("count"), node.member("name")
        number = _dstack_count(value_of(counted.node)) if counted is not None else Known(1)
        is_named = kind is not None and kind.node.kind is Kind.SCALAR
        return Accelerators(member, number, lift(str, value_of(kind.node)) if kind is not None and is_named else None)
    value = value_of(node)
    if not isinstance(value, Known):
        return Accelerators(member, value)
    parts = [part.strip() for part in str(value.value).split(":")]
    counts = [part for part in parts if re.fullmatch(r"\d+|\d*\.\.\d*", part)]
    kinds = [part for part in parts if re.match(r"[A-Za-z]", part)]
    many = Unresolved("a choice of GPUs") if kinds and "," in kinds[-1] else None
    count = _dstack_count(Known(counts[-1])) if counts else Known(1)
    return Accelerators(member, count, many or (Known(kinds[-1]) if kinds else None))


def _dstack_count(value: Value) -> Value:
    if isinstance(value, Known) and (found := _RANGE.fullmatch(str(value.value))) is not None:
        if found[1] and found[1] == found[2]:
            return Known(int(found[1]))
        return Unresolved(f"{value.value}: a range of GPUs")
    return as_int(value)


def _mcli(root: Node) -> Accelerators | None:
    member = root.member("compute", "gpus") or root.member("gpus") or root.member("gpu_num")
    if member is None:
        return None
    kind = root.member("compute", "gpu_type") or root.member("gpu_type")
    named = lift(str, value_of(kind.node)) if kind is not None else None
    return Accelerators(member, as_int(value_of(member.node)), named, total=True)


_HEAD = 60_000
_INPUT = re.compile(r"\$\{\{\s*(?:parent\.)?inputs\.(\w+)\s*\}\}")
#: dstack's files that start nothing on several nodes.
_OF_OTHER_TYPE = re.compile(r"^type:[ \t]*[\"']?(?:dev-environment|fleet|volume|gateway)\b", re.MULTILINE)
_MAX_TASKS = 50
_MAX_VARIABLES = 300


class TaskFileSource:
    """Reads the task files of one orchestrator."""

    #: A line that submits the file tells whose it is, whatever its keys.
    decided_by_role = True

    def __init__(self, orchestrator: Orchestrator) -> None:
        self.orchestrator = orchestrator
        self.name = orchestrator.name
        self.roles = (task_role(orchestrator.name),)

    def recognises(self, file: SourceFile) -> bool:
        """Return whether the file is YAML with the keys of an orchestrator's task, or with a name that only
        such files have.
        """
        path = file.path.lower()
        if not path.endswith((".yaml", ".yml")):
            return False
        if self.orchestrator.suffixes and path.endswith(self.orchestrator.suffixes):
            return _OF_OTHER_TYPE.search(file.text[:_HEAD]) is None
        head = file.text[:_HEAD]
        if any(pattern.search(head) is not None for pattern in self.orchestrator.others):
            return False
        return all(pattern.search(head) is not None for pattern in self.orchestrator.signs)

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """Read the requests and the launches of each task."""
        from preflight.sources.formats import lenient_yaml

        reader = _Tasks(self.orchestrator, file, tree)
        notes = []
        documents = truncate(lenient_yaml.parse_all(file.text), _MAX_TASKS, "tasks of a file")
        for document in documents:
            notes.extend(reader.node_claims.notes(document))
            root = document.root
            if root is not None and len(documents) == 1 and self.orchestrator.has_settings(root):
                state_settings(reader.node_claims, root, self.name)
            if document.root is not None and document.root.kind is Kind.OBJECT:
                for task in truncate(list(self.orchestrator.tasks(document.root)), _MAX_TASKS, "tasks of a file"):
                    reader.read(task)
        reading = Reading(notes=tuple(notes), suppressions=suppressions(file)).joined(reader.reading)
        reading = reading.joined(Reading(tuple(reader.node_claims.claims)))
        return without_secrets(reading, secrets_of(reader.commands))


@dataclass(slots=True)
class _Tasks:
    """Reads one file."""

    kind: Orchestrator
    file: SourceFile
    tree: Tree
    reading: Reading = field(default_factory=Reading)
    commands: list[Command] = field(default_factory=list)
    node_claims: NodeClaims = field(init=False)
    _text: FileText = field(init=False)

    def __post_init__(self) -> None:
        self.node_claims = NodeClaims(self.file, self.kind.name, strength=Strength.SCHEDULER)
        self._text = FileText(self.file.path, self.file.text)

    def read(self, root: Node) -> None:
        """Add claims for one task."""
        from preflight.sources.launchers.launch_lines import read_commands

        script = root.member(self.kind.code)
        if script is None:
            return
        code = (*self._change_folder(root), *self._with_inputs(self._code(script.node), root))
        nodes = root.member(*self.kind.nodes.split(".")) if self.kind.nodes else None
        count: Value = as_int(value_of(nodes.node)) if nodes is not None else Known(1)
        accelerators = self.kind.accelerators(root)
        ranks = self.kind.ranks(root) if self.kind.ranks is not None else None
        variables = dict(self._provided_variables(script, nodes, count, accelerators, ranks))
        for key in self.kind.environment:
            variables.update(self._environment(root.at(*key.split("."))))
        place = Place(self._text, script.key_start, script.key_end)
        evaluated = evaluate_code(self.file, self.tree, code, variables, place)
        self.commands.extend(evaluated.commands)
        found = read_commands(evaluated.commands, {}, self.tree, batch=False)
        found = replace(found, claims=tuple(_with_node_count(claim, count) for claim in found.claims))
        for launch in found.launches:
            self._state(launch, script, nodes, count, accelerators)
            if ranks is not None and ranks.member is not None:
                self._state_ranks(launch, ranks, ranks.member)
            self._parameters(root, launch)
        found = Reading(references=evaluated.references, notes=evaluated.notes).joined(found)
        self.reading = self.reading.joined(found)

    def _state(
        self, launch: Launch, script: Member, nodes: Member | None, count: Value, gpus: Accelerators | None
    ) -> None:
        """Add claims about what the orchestrator provides for a launch of the script."""
        node_claims, scope = self.node_claims, launch.scope
        counted: Claim | None = None
        if nodes is not None:
            counted = node_claims.add("nodes", count, nodes, scope=scope)
        elif self.kind.nodes and (gpus is None or not gpus.total):
            key = Node(Kind.SCALAR, script.key_start, script.key_end, script.key)
            at = Member(script.key, script.key_start, script.key_end, key)
            claim = node_claims.add("nodes", Known(1), at, scope=scope, strength=Strength.DEFAULT)
            counted = replace(claim, spelling=f"{script.key} (without {self.kind.nodes}: one node)")
            node_claims.claims[-1] = counted
        if gpus is None:
            return
        if gpus.total:
            node_claims.add("world_size", gpus.count, gpus.member, scope=scope, strength=Strength.CONFIG)
        else:
            node_claims.add("gpus_per_node", gpus.count, gpus.member, scope=scope)
        if gpus.kind is not None:
            node_claims.add("gpu_type", gpus.kind, gpus.member, scope=scope)

    def _state_ranks(self, launch: Launch, ranks: RanksPerNode, member: Member) -> None:
        """Add claims about the number of copies; each copy of a launcher's command line is a task that starts ranks
        itself.
        """
        is_rank = launch.launcher == "python"
        if ranks.total:
            quantity = "world_size" if is_rank else "tasks"
        else:
            quantity = "processes_per_node" if is_rank else "tasks_per_node"
        self.node_claims.add(quantity, ranks.count, member, scope=launch.scope)

    def _parameters(self, root: Node, launch: Launch) -> None:
        """Add the claims of the configuration that the orchestrator writes next to the program."""
        section, framework = root.at(self.kind.parameters), self.kind.framework
        if section is None or section.kind is not Kind.OBJECT or framework is None:
            return
        node_claims = NodeClaims(self.file, framework.name, launch.scope)
        for key, member in keys_in_force(framework, section):
            node_claims.add_member(key.quantity, member, key.read, relation=key.relation)
        self.node_claims.claims.extend(node_claims.claims)

    def _code(self, node: Node) -> Text:
        """Return the script: one string, or the joined lines of a list."""
        if node.kind is Kind.ARRAY:
            pieces: list[Piece] = []
            for item in node.items:
                pieces.extend(code_of(self._text, item))
                end = " " if self.kind.is_word_list else "\n"
                pieces.append(Lit(end, Place(self._text, item.end, item.end), False))
            return tuple(pieces)
        if node.kind not in (Kind.SCALAR, Kind.TEMPLATE) or node.value is None:
            return ()
        return code_of(self._text, node)

    def _change_folder(self, root: Node) -> Text:
        """Return a command that enters the folder of the task's code, so that the script's paths are found."""
        folder = root.member(self.kind.folder) if self.kind.folder else None
        name = folder.node.text() if folder is not None else ""
        if folder is None or not name or ":" in name:
            return ()
        target = self.tree.resolve(name, relative_to=self.file.path)
        if target is None:
            return ()
        place = Place(self._text, folder.node.start, folder.node.end)
        return (Lit(f"cd {shlex.quote(target)}\n", place, False),)

    def _with_inputs(self, code: Text, root: Node) -> Text:
        """Return the script with its task's inputs in place of `${{inputs.NAME}}`."""
        if not self.kind.inputs:
            return code
        inputs = root.at(self.kind.inputs)
        pieces: list[Piece] = []
        for piece in code:
            found = _INPUT.fullmatch(piece.spelling) if isinstance(piece, Hole) else None
            node = inputs.at(found[1]) if inputs is not None and found is not None else None
            if node is not None and node.kind is Kind.OBJECT:
                node = node.at("default")
            if node is not None and node.kind is Kind.SCALAR and node.value is not None:
                pieces.extend(code_of(self._text, node))
            else:
                pieces.append(piece)
        return tuple(pieces)

    def _provided_variables(
        self, script: Member, nodes: Member | None, count: Value, gpus: Accelerators | None, ranks: RanksPerNode | None
    ) -> Iterator[tuple[str, Slot]]:
        """Yield the variables that the orchestrator sets on every node, or for every rank that it starts."""
        at = Place(self._text, script.key_start, script.key_end)
        of_ranks = ranks.variables if ranks is not None else {}
        for name, what in {**self.kind.variables, **of_ranks}.items():
            if what == WORLD and ranks is not None:
                place, value = at, ranks.count if ranks.total else lift(product_of, count, ranks.count)
            else:
                place, value = at, self._value(what, count, gpus)
            if what == NODES and nodes is not None:
                place = Place(self._text, nodes.node.start, nodes.node.end)
            elif what in (GPUS, GPUS_PER_NODE) and gpus is not None:
                place = Place(self._text, gpus.member.node.start, gpus.member.node.end)
            yield name, Slot(SlotKind.TEXT, place, _text_of(value, place, f"${name}"), exported=True)

    def _value(self, kind: str | Symbol, count: Value, gpus: Accelerators | None) -> Value:
        if isinstance(kind, Symbol):
            return Unresolved(kind.value)
        if kind == NODES:
            return count
        each: Value = gpus.count if gpus is not None else Unresolved(Symbol.GPU_COUNT.value)
        if kind == GPUS_PER_NODE or (gpus is not None and gpus.total):
            return each
        return lift(product_of, count, each)

    def _environment(self, node: Node | None) -> Iterator[tuple[str, Slot]]:
        """Yield `NAME: value`, `- NAME=value`, or mcli's `- key: NAME` with `value`; a name alone is set by the
        caller.
        """
        for member in truncate(node.in_force if node is not None else (), _MAX_VARIABLES, "variables"):
            yield member.key, self._slot(member.key, member.node)
        for item in truncate(node.items if node is not None else (), _MAX_VARIABLES, "variables"):
            name, value = item.text("key"), item.at("value")
            if name and value is not None:
                yield name, self._slot(name, value)
                continue
            text = code_of(self._text, item) if item.kind is Kind.SCALAR else ()
            name, equals, _ = str(item.value).partition("=")
            if equals and text and isinstance(text[0], Lit) and "=" in text[0].text:
                at = text[0].text.index("=") + 1
                pieces: Text = (text[0].cut(at, len(text[0].text)), *text[1:])
                yield name, Slot(SlotKind.TEXT, Place(self._text, item.start, item.end), pieces, exported=True)
            elif item.kind is Kind.SCALAR and name and not equals:
                yield name, self._slot(name, item, outside=True)

    def _slot(self, name: str, node: Node, *, outside: bool = False) -> Slot:
        place = Place(self._text, node.start, node.end)
        if outside or node.value is None:
            text = hole(f"${name}, which the caller sets", place, name, origin=caller_origin(name))
            return Slot(SlotKind.TEXT, place, text, exported=True)
        return Slot(SlotKind.TEXT, place, code_of(self._text, node), exported=True)


def _text_of(value: Value, place: Place, spelling: str) -> Text:
    if isinstance(value, Known):
        return (Lit(str(value.value), place, False, spelling),)
    if isinstance(value, OneOf):
        return (Alt(tuple((Lit(str(item), place, False, spelling),) for item in value.values), place, spelling),)
    return (Hole(value.why, place, spelling),)


def _with_node_count(claim: Claim, nodes: Value) -> Claim:
    """Return the claim with the number of nodes, if the script counts the hosts itself: `$(echo "$SKYPILOT_NODE_IPS" |
    wc -l)`.
    """
    counted = Unresolved(Symbol.ALLOCATED_HOST_COUNT.value)
    return replace(claim, value=nodes) if claim.value == counted else claim


_TABLE = toml.beside(__file__, "orchestrators.toml")


def _variables(row: dict[str, str]) -> dict[str, str | Symbol]:
    return {name: Symbol[what] if what.isupper() else what for name, what in row.items()}


_VARIABLES = {kind: _variables(row) for kind, row in _TABLE["distribution"].items()}


def _tasks(root: Node) -> Iterator[Node]:
    """Yield the job itself, the trial of a sweep, or each job of a pipeline."""
    yield root
    jobs = root.at("jobs")
    for task in (root, *(member.node for member in (jobs.in_force if jobs is not None else ()))):
        if task is not root and task.kind is Kind.OBJECT:
            yield task
        trial = task.at("trial")
        if trial is not None and trial.kind is Kind.OBJECT:
            yield trial


def _ranks(root: Node) -> RanksPerNode | None:
    distribution = root.at("distribution")
    if distribution is None or distribution.kind is not Kind.OBJECT:
        return None
    kind = distribution.text("type").lower()
    if kind not in _VARIABLES:
        return None
    if kind == "tensorflow":
        # Workers are spread over the instances. Parameter servers make the job one of another kind.
        workers = distribution.member("worker_count") if distribution.at("parameter_server_count") is None else None
        count = as_int(value_of(workers.node)) if workers is not None else Unresolved(Symbol.LIBRARY_DEFAULT.value)
        return RanksPerNode(count, workers, _VARIABLES[kind], total=True)
    member = distribution.member("process_count_per_instance")
    count = as_int(value_of(member.node)) if member is not None else Unresolved(Symbol.LIBRARY_DEFAULT.value)
    return RanksPerNode(count, member, _VARIABLES[kind])


#: Values that trials of a search have in common; those that it varies are objects with a type.
_PARAMETERS = Framework(
    name="determined",
    suffixes=(),
    signs=(),
    keys=(
        Key("global_batch_size", "train_batch_size", as_count),
        Key("per_device_train_batch_size", "micro_batch_size_per_gpu", as_count),
        Key("learning_rate", "learning_rate", as_float),
    ),
)


def _slots(root: Node) -> Accelerators | None:
    member = root.member("resources", "slots_per_trial") or root.member("resources", "slots")
    return Accelerators(member, as_int(value_of(member.node)), total=True) if member is not None else None


#: What only code can read of the files of each orchestrator.
_READERS: dict[str, dict[str, Any]] = {
    "skypilot": {"accelerators": _sky, "has_settings": lambda root: root.kind is Kind.OBJECT},
    "dstack": {"accelerators": _dstack, "has_settings": _is_no_other_type},
    "azure-ml": {"accelerators": lambda _: None, "tasks": _tasks, "ranks": _ranks},
    "mcli": {"accelerators": _mcli, "framework": FRAMEWORKS["composer"]},
    "determined": {"accelerators": _slots, "framework": _PARAMETERS},
}


def _orchestrator(row: dict[str, Any]) -> Orchestrator:
    given = toml.with_tuples(row) | _READERS[row["name"]]
    for name in ("signs", "others"):
        given[name] = tuple(re.compile(text, re.MULTILINE) for text in row[name])
    return Orchestrator(**given | {"variables": _variables(row.get("variables", {}))})


#: In the order in which they are tried.
SOURCES = tuple(TaskFileSource(_orchestrator(row)) for row in _TABLE["orchestrator"])
