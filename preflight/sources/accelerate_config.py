"""Reads the configuration of `accelerate launch` (YAML or JSON): machines, processes, and its sections.

Source of keys, defaults and precedence: accelerate/commands/config/config_args.py and commands/launch.py of
accelerate 1.15. `num_processes` counts over all machines. An option of the command line wins over the file, with two
exceptions that this file can do nothing about: `rdzv_backend` and `same_network` have defaults on the command line,
so what the file says of them is never looked at (so in every version since 0.20).
"""

from __future__ import annotations

import posixpath
import re

from preflight.job import (
    WHOLE_JOB,
    Claim,
    Known,
    Note,
    NoteKind,
    Reference,
    Relation,
    Scope,
    Strength,
    Unresolved,
    Value,
    as_int,
    lift,
)
from preflight.lazy.patterns import lazy_pattern
from preflight.sources import fsdp
from preflight.sources.base import Reading, SourceFile, Tree
from preflight.sources.comments import suppressions
from preflight.sources.deepspeed_claims import AUTO
from preflight.sources.structured import Kind, Member, Node, NodeStating, document_of

#: How other files refer to one of these.
ROLE = "accelerate"
#: Keys of one section that are looked at; Accelerate has some thirty at the top.
_MOST_KEYS = 200
#: A file that goes on longer before it names itself is something else.
_HEAD = 8192
#: Values that no other framework's configuration of that key has.
_KINDS = lazy_pattern(
    r"^[ \t]*[\"']?(?:compute_environment[\"']?[ \t]*:|distributed_type[\"']?[ \t]*:[ \t]*[\"']?(?:NO|no|MULTI_[A-Z]+"
    r"|FSDP|DEEPSPEED|MEGATRON_LM|TPU|XLA)\b)",
    re.MULTILINE,
)
_BESIDE = lazy_pattern(
    r"^[ \t]*[\"']?(?:num_processes|num_machines|machine_rank|mixed_precision|fsdp_config|deepspeed_config"
    r"|main_process_ip|main_process_port|downcast_bf16|use_cpu|ec2_instance_type)[\"']?[ \t]*:",
    re.MULTILINE,
)
_PLACEHOLDER = lazy_pattern(r"[{}<>$@%]")
_MEGATRON = {
    "megatron_lm_tp_degree": "tensor_parallel_size",
    "megatron_lm_pp_degree": "pipeline_parallel_size",
    "megatron_lm_context_parallel_size": "context_parallel_size",
    "megatron_lm_expert_model_parallel_size": "expert_parallel_size",
}
_PARALLELISM = {
    "parallelism_config_tp_size": "tensor_parallel_size",
    "parallelism_config_cp_size": "context_parallel_size",
}
_DEFAULT_PORT = 29500
#: Of the ways to start DeepSpeed on several machines, those for which accelerate runs on each of them.
EACH_MACHINE = ("standard", "nossh")


class AccelerateSource:
    """Reads one configuration of `accelerate launch`."""

    name = "accelerate"
    roles = (ROLE,)

    def recognises(self, file: SourceFile) -> bool:
        """Whether it is YAML or JSON that says on what and how Accelerate distributes."""
        if not file.path.lower().endswith((".yaml", ".yml", ".json")):
            return False
        head = file.text[:_HEAD]
        return _KINDS.search(head) is not None and _BESIDE.search(head) is not None

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """State the launch's size, meeting place, precision, and its DeepSpeed, FSDP and Megatron-LM sections."""
        document = document_of(file)
        root = document.root
        stating = NodeStating(file, "accelerate", scope)
        notes = stating.notes(document)
        references: list[Reference] = []
        if root is not None and root.kind is Kind.OBJECT:
            _state_keys(stating, root)
            if root.text("compute_environment") in ("", "LOCAL_MACHINE"):
                _state_launch(stating, root)
                references = _state_deepspeed(stating, root, tree)
                _state_sections(stating, root)
        elif root is not None:
            message = f"{file.path} holds no keys; accelerate expects a mapping"
            notes.append(Note(NoteKind.MALFORMED, message, stating.span(root)))
        return Reading(tuple(stating.claims), (), tuple(references), tuple(notes), suppressions(file))


def starts_by_deepspeed(root: Node, machines: str = "", launcher: str = "") -> bool:
    """Whether accelerate hands the launch to `deepspeed`, which reaches the other machines itself.

    `machines` and `launcher` are what the command line says, which wins over the file.
    """
    count = root.at("num_machines")
    number = machines or (str(count.value) if count is not None else "")
    chosen = launcher or root.text("deepspeed_config", "deepspeed_multinode_launcher")
    several = number.isdigit() and int(number) > 1
    return several and root.text("distributed_type") == "DEEPSPEED" and chosen not in EACH_MACHINE


def _state_keys(stating: NodeStating, root: Node) -> None:
    for member in root.members[:_MOST_KEYS]:
        _state_key(stating, member, member.key)
        if member.key.endswith("_config") and member.node.kind is Kind.OBJECT:
            for inner in member.node.members[:_MOST_KEYS]:
                _state_key(stating, inner, f"{member.key}.{inner.key}")


def _state_key(stating: NodeStating, member: Member, name: str) -> None:
    span = stating.places.span(member.key_start, member.key_end)
    templated = _PLACEHOLDER.search(member.key) is not None
    value = Unresolved("a placeholder that something fills in later") if templated else Known(name)
    stating.claims.append(
        Claim("accelerate_key", value, span, member.key, stating.source, stating.scope, Strength.CONFIG)
    )


def _state_launch(stating: NodeStating, root: Node) -> None:
    stating.given("distributed_type", root.member("distributed_type"), _as_text)
    machines = root.member("num_machines")
    stating.given("nodes", machines, as_int, relation=Relation.REQUIRES)
    stating.given("world_size", root.member("num_processes"), _processes)
    stating.given("node_rank", root.member("machine_rank"), as_int)
    stating.given("master_addr", root.member("main_process_ip"), host)
    port = root.member("main_process_port")
    stating.given("master_port", port, free_port)
    kind = root.member("distributed_type")
    if kind is not None and root.text("distributed_type") not in ("", "NO"):
        if machines is None:
            _default(stating, "nodes", 1, kind, "num_machines", Relation.REQUIRES)
        if port is None or port.node.value is None:
            _default(stating, "master_port", _DEFAULT_PORT, kind, "main_process_port", Relation.SETS)
    stating.given("rendezvous_backend_unread", root.member("rdzv_backend"), _as_text)
    stating.given("mixed_precision", root.member("mixed_precision"), _precision)
    devices = root.member("gpu_ids")
    if devices is not None and devices.node.value not in (None, "all"):
        # Accelerate overwrites what the environment says.
        stating.say("env.CUDA_VISIBLE_DEVICES", _as_text(_known(devices.node)), devices, strength=Strength.FLAG)


def _default(stating: NodeStating, quantity: str, value: int, member: Member, missing: str, relation: Relation) -> None:
    claim = stating.say(quantity, Known(value), member, relation=relation, strength=Strength.DEFAULT)
    spelled = f"{claim.spelling} (without {missing})"
    stating.claims[-1] = Claim(
        quantity, Known(value), claim.span, spelled, claim.source, claim.scope, claim.strength, relation
    )


def _state_deepspeed(stating: NodeStating, root: Node, tree: Tree) -> list[Reference]:
    section = root.at("deepspeed_config")
    if section is None or section.kind is not Kind.OBJECT:
        return []
    references = []
    for key, role in (("deepspeed_config_file", "config"), ("deepspeed_hostfile", "hostfile")):
        member = section.member(key)
        path = section.text(key)
        target = tree.resolve(path, relative_to=stating.file.path) if path and path != "none" else None
        if member is not None and target is not None:
            references.append(Reference(posixpath.normpath(target), role, stating.span(member.node), stating.scope))
    stating.given("multinode_launcher", section.member("deepspeed_multinode_launcher"), _as_text)
    if section.text("deepspeed_config_file") in ("", "none"):
        inner = NodeStating(stating.file, "deepspeed", stating.scope)
        inner.given("gradient_accumulation_steps", section.member("gradient_accumulation_steps"), _unless_auto)
        inner.given("gradient_clipping", section.member("gradient_clipping"), _unless_auto)
        inner.given("zero_stage", section.member("zero_stage"))
        stating.claims.extend(inner.claims)
    return references


def _state_sections(stating: NodeStating, root: Node) -> None:
    section = root.at("fsdp_config")
    for member in section.in_force if section is not None else ():
        quantity = fsdp.quantity_of(member.key)
        if quantity is not None:
            stating.given(quantity, member, fsdp.reading_of(quantity))
    for name, quantities in (("megatron_lm_config", _MEGATRON), ("parallelism_config", _PARALLELISM)):
        section = root.at(name)
        for member in section.in_force if section is not None else ():
            quantity = quantities.get(member.key)
            if quantity is not None:
                stating.given(quantity, member, as_int)


def _known(node: Node) -> Value:
    return Known(node.value) if node.kind is Kind.SCALAR else Unresolved("a placeholder that something fills in later")


def _as_text(value: Value) -> Value:
    return lift(lambda item: item if isinstance(item, str) else str(item), value)


def _precision(value: Value) -> Value:
    """`no` without quotation marks is YAML's false."""
    return lift(lambda item: "no" if item is False else str(item).lower(), value)


def _processes(value: Value) -> Value:
    if value == Known(-1):
        return Unresolved("-1: the command line has to give the number")
    return as_int(value)


def host(value: Value) -> Value:
    """A host name, unless it is a blank to be filled in."""
    from preflight.sources.launchers.stating import unless_blank

    return unless_blank(_as_text(value))


def free_port(value: Value) -> Value:
    """A port; 0 lets accelerate take any that is free."""
    return Unresolved("0: any free port") if value in (Known(0), Known("0")) else as_int(value)


def _unless_auto(value: Value) -> Value:
    return AUTO if value == Known("auto") else value
