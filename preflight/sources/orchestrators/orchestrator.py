"""Describes the task files of orchestrators as tables: the keys of the script, the requests and the variables.

Sources: sky/utils/schemas.py, sky/skylet/constants.py and accelerator_registry.py (SkyPilot 0.14);
core/models/configurations.py and resources.py (dstack 0.20); docs of mcli (compute, command, parameters).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from preflight.model.job import Known, Unresolved, Value, as_int, lift, one_of
from preflight.model.job.value import Symbol
from preflight.sources.configs.frameworks.framework_files import FRAMEWORKS, Framework
from preflight.sources.formats.structured import Kind, Member, Node, value_of

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
    """How many copies of the script the orchestrator starts on each node, and the variables that each of them gets.

    `member` is where the number is requested; None where the file leaves it out. `total`: on all nodes together.
    """

    count: Value
    member: Member | None
    variables: dict[str, str | Symbol]
    total: bool = False


def _is_object(root: Node) -> bool:
    return root.kind is Kind.OBJECT


def _is_no_other_type(root: Node) -> bool:
    """Whether dstack's file is a task, or has no type that dstack knows."""
    others = ("service", "dev-environment", "fleet", "volume", "gateway", "preset", "endpoint")
    return root.kind is Kind.OBJECT and root.text("type") not in others


def _the_file(root: Node) -> Iterator[Node]:
    yield root


@dataclass(frozen=True, slots=True)
class Orchestrator:
    """One kind of task file.

    Args:
        name: the source of its claims.
        signs: patterns that must all occur in the file.
        code: the key with the script: one string, or a list of lines.
        environment: dotted keys with variables, a mapping or a list of `NAME=value`.
        nodes: the key with the number of nodes; None for a single node, empty if the cluster decides it.
        accelerators: reads the GPUs that the file requests.
        variables: the variables that the orchestrator sets on each node.
        others: keys of other kinds of files.
        parameters: the key with the configuration that the task's program reads, in the format of `framework`.
        framework: the framework of that configuration.
        is_word_list: whether a list of the script's key holds the words of one command, not lines.
        tasks: the tasks of a file; by default the file is one task.
        folder: the key with the folder that the script starts in, relative to the file.
        inputs: the key with values that replace `${{inputs.NAME}}` in the script.
        ranks: reads how many copies of the script start on each node; None where it starts once on each.
        suffixes: the ends of names that only its files have.
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
    """The role in which a line that submits a task file of this orchestrator refers to it."""
    return f"task of {name}"


_NAMED = re.compile(r"(?P<kind>[A-Za-z][\w.+ -]*?)(?::(?P<count>\d+(?:\.\d+)?))?")


def _sky(root: Node) -> Accelerators | None:
    """`A100:8`, `{A100: 8}`, `[A100:8, H100:8]` or a set of them, from which SkyPilot may choose."""
    resources = root.at("resources")
    member = resources.member("accelerators") if resources is not None else None
    listed = [member] if member is not None else []
    for key in ("any_of", "ordered"):
        choice = resources.at(key) if resources is not None else None
        for item in choice.items if choice is not None else ():
            found = item.member("accelerators") if item.kind is Kind.OBJECT else None
            listed.extend([found] if found is not None else [])
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


SKYPILOT = Orchestrator(
    name="skypilot",
    signs=(
        re.compile(r"^run:[ \t]*[|>\"'\w]", re.MULTILINE),
        re.compile(r"^num_nodes:|^resources:[ \t]*\{?|^file_mounts:", re.MULTILINE),
        re.compile(
            r"^num_nodes:|^[ \t{]+(?:accelerators|cloud|infra|cpus|any_of|use_spot|instance_type|image_id|disk_size):",
            re.MULTILINE,
        ),
    ),
    code="run",
    environment=("envs", "secrets"),
    nodes="num_nodes",
    accelerators=_sky,
    variables={
        "SKYPILOT_NUM_NODES": NODES,
        "SKYPILOT_NUM_GPUS_PER_NODE": GPUS_PER_NODE,
        "SKYPILOT_NODE_RANK": Symbol.NODE_RANK,
        "SKYPILOT_NODE_IPS": Symbol.ALLOCATED_HOSTS,
        "SKYPILOT_TASK_ID": Symbol.JOB_ID,
    },
    others=(re.compile(r"^(?:apiVersion|on|jobs|type|services|stages|steps):", re.MULTILINE),),
    has_settings=_is_object,
)

#: `8`, `H100:8`, `H100:80GB:8`, `1..8`; a text of several parts has the count in one of them.
_RANGE = re.compile(r"(\d+)?\.\.(\d+)?")


def _dstack(root: Node) -> Accelerators | None:
    member = root.member("resources", "gpu")
    if member is None:
        return None
    node = member.node
    if node.kind is Kind.OBJECT:
        count = node.member("count")
        kind = node.member("name")
        return Accelerators(
            member,
            _dstack_count(value_of(count.node)) if count is not None else Known(1),
            lift(str, value_of(kind.node)) if kind is not None and kind.node.kind is Kind.SCALAR else None,
        )
    value = value_of(node)
    if not isinstance(value, Known):
        return Accelerators(member, value)
    parts = [part.strip() for part in str(value.value).split(":")]
    counts = [part for part in parts if re.fullmatch(r"\d+|\d*\.\.\d*", part)]
    kinds = [part for part in parts if re.match(r"[A-Za-z]", part)]
    many = Unresolved("a choice of GPUs") if kinds and "," in kinds[-1] else None
    return Accelerators(
        member, _dstack_count(Known(counts[-1])) if counts else Known(1), many or (Known(kinds[-1]) if kinds else None)
    )


def _dstack_count(value: Value) -> Value:
    if isinstance(value, Known) and (found := _RANGE.fullmatch(str(value.value))) is not None:
        if found[1] and found[1] == found[2]:
            return Known(int(found[1]))
        return Unresolved(f"{value.value}: a range of GPUs")
    return as_int(value)


DSTACK = Orchestrator(
    name="dstack",
    signs=(re.compile(r"^type:[ \t]*[\"']?(?:task|service)\b", re.MULTILINE), re.compile(r"^commands:", re.MULTILINE)),
    code="commands",
    environment=("env",),
    nodes="nodes",
    accelerators=_dstack,
    variables={
        "DSTACK_NODES_NUM": NODES,
        "DSTACK_GPUS_PER_NODE": GPUS_PER_NODE,
        "DSTACK_GPUS_NUM": GPUS,
        "DSTACK_NODE_RANK": Symbol.NODE_RANK,
        "DSTACK_MASTER_NODE_IP": Symbol.FIRST_ALLOCATED_ADDRESS,
        "DSTACK_NODES_IPS": Symbol.ALLOCATED_HOSTS,
        "DSTACK_RUN_ID": Symbol.JOB_ID,
    },
    others=(re.compile(r"^(?:apiVersion|run|jobs):", re.MULTILINE),),
    suffixes=(".dstack.yml", ".dstack.yaml"),
    has_settings=_is_no_other_type,
)


def _mcli(root: Node) -> Accelerators | None:
    member = root.member("compute", "gpus") or root.member("gpus") or root.member("gpu_num")
    if member is None:
        return None
    kind = root.member("compute", "gpu_type") or root.member("gpu_type")
    return Accelerators(
        member, as_int(value_of(member.node)), lift(str, value_of(kind.node)) if kind is not None else None, total=True
    )


MCLI = Orchestrator(
    name="mcli",
    signs=(
        re.compile(r"^command:", re.MULTILINE),
        re.compile(r"^(?:compute|gpus|gpu_num):", re.MULTILINE),
        re.compile(r"^(?:integrations|image|cluster|parameters|compute):", re.MULTILINE),
    ),
    code="command",
    environment=("env_variables",),
    nodes="compute.nodes",
    accelerators=_mcli,
    variables={"WORLD_SIZE": GPUS, "NODE_RANK": Symbol.NODE_RANK, "MASTER_ADDR": Symbol.FIRST_ALLOCATED_HOST},
    others=(re.compile(r"^(?:apiVersion|services|type|run):", re.MULTILINE),),
    parameters="parameters",
    framework=FRAMEWORKS["composer"],
)
