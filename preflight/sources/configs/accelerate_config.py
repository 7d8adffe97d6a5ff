"""Reads the configuration of `accelerate launch` (YAML or JSON): machines, processes, and its sections.

Source of keys, defaults and precedence: accelerate/commands/config/config_args.py and commands/launch.py of
accelerate 1.15. `num_processes` counts over all machines. An option on the command line takes precedence over the file.
Two keys of the file have no effect, because their options have defaults: `rdzv_backend` and `same_network` (in every
version since 0.20).
"""

from __future__ import annotations

import posixpath
import re

from preflight._util.budget import truncate
from preflight.model.job import (
    AUTO,
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
    is_whole_number,
    lift,
)
from preflight.sources.base import Reading, SourceFile, Tree
from preflight.sources.configs.framework_files import state_settings
from preflight.sources.configs.hugging_face import state_fsdp
from preflight.sources.formats.comments import suppressions
from preflight.sources.formats.structured import Kind, Member, Node, NodeClaims, document_of
from preflight.sources.value_readers import as_text

#: The role in which other files refer to such a file.
ROLE = "accelerate"
#: Keys of one section that are examined; Accelerate has some thirty at the top.
_MAX_KEYS = 200
#: A file that does not identify itself within this many characters is something else.
_HEAD = 8192
#: Values that no other framework uses for that key.
_KINDS = re.compile(
    r"^[ \t]*[\"']?(?:compute_environment[\"']?[ \t]*:|distributed_type[\"']?[ \t]*:[ \t]*[\"']?(?:NO|no|MULTI_[A-Z]+"
    r"|FSDP|DEEPSPEED|MEGATRON_LM|TPU|XLA)\b)",
    re.MULTILINE,
)
_BESIDE = re.compile(
    r"^[ \t]*[\"']?(?:num_processes|num_machines|machine_rank|mixed_precision|fsdp_config|deepspeed_config"
    r"|main_process_ip|main_process_port|downcast_bf16|use_cpu|ec2_instance_type)[\"']?[ \t]*:",
    re.MULTILINE,
)
_INDENTED = re.compile(r"^[ \t].*$", re.MULTILINE)
_PLACEHOLDER = re.compile(r"[{}<>$@%]")
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
#: The methods of starting DeepSpeed on several machines that need accelerate on each of them.
EACH_MACHINE = ("standard", "nossh")


class AccelerateSource:
    """Reads one configuration of `accelerate launch`."""

    name = "accelerate"
    roles = (ROLE,)

    def recognises(self, file: SourceFile) -> bool:
        """Whether it is YAML or JSON with Accelerate's distribution settings."""
        if not file.path.lower().endswith((".yaml", ".yml", ".json")):
            return False
        head = file.text[:_HEAD]
        if not file.path.lower().endswith(".json"):
            # Such keys further in are those of a file that another one contains.
            head = _INDENTED.sub("", head)
        return _KINDS.search(head) is not None and _BESIDE.search(head) is not None

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """State the launch's size, rendezvous, precision, and its DeepSpeed, FSDP and Megatron-LM sections."""
        document = document_of(file)
        root = document.root
        node_claims = NodeClaims(file, "accelerate", scope)
        notes = node_claims.notes(document)
        references: list[Reference] = []
        if root is not None and root.kind is Kind.OBJECT:
            _state_keys(node_claims, root)
            state_settings(node_claims, root, "accelerate")
            if root.text("compute_environment") in ("", "LOCAL_MACHINE"):
                _state_launch(node_claims, root)
                references = _state_deepspeed(node_claims, root, tree)
                _state_sections(node_claims, root)
        elif root is not None:
            message = f"{file.path} has no keys; accelerate expects a mapping"
            notes.append(Note(NoteKind.MALFORMED, message, node_claims.span(root)))
        return Reading(tuple(node_claims.claims), (), tuple(references), tuple(notes), suppressions(file))


def starts_by_deepspeed(root: Node, machines: str = "", launcher: str = "") -> bool:
    """Whether accelerate hands the launch to `deepspeed`, which reaches the other machines itself.

    `machines` and `launcher` come from the command line, which wins over the file.
    """
    count = root.at("num_machines")
    number = machines or (str(count.value) if count is not None else "")
    chosen = launcher or root.text("deepspeed_config", "deepspeed_multinode_launcher")
    several = is_whole_number(number) and int(number) > 1
    return several and root.text("distributed_type") == "DEEPSPEED" and chosen not in EACH_MACHINE


def _state_keys(node_claims: NodeClaims, root: Node) -> None:
    for member in truncate(root.members, _MAX_KEYS, "keys"):
        _state_key(node_claims, member, member.key)
        if member.key.endswith("_config") and member.node.kind is Kind.OBJECT:
            for inner in truncate(member.node.members, _MAX_KEYS, "keys of a section"):
                _state_key(node_claims, inner, f"{member.key}.{inner.key}")


def _state_key(node_claims: NodeClaims, member: Member, name: str) -> None:
    span = node_claims.places.span(member.key_start, member.key_end)
    templated = _PLACEHOLDER.search(member.key) is not None
    value = Unresolved("a placeholder that is replaced later") if templated else Known(name)
    node_claims.claims.append(
        Claim("accelerate_key", value, span, member.key, node_claims.source, node_claims.scope, Strength.CONFIG)
    )


def _state_launch(node_claims: NodeClaims, root: Node) -> None:
    node_claims.add_member("distributed_type", root.member("distributed_type"), as_text)
    machines = root.member("num_machines")
    node_claims.add_member("nodes", machines, as_int, relation=Relation.REQUIRES)
    node_claims.add_member("world_size", root.member("num_processes"), _processes)
    node_claims.add_member("node_rank", root.member("machine_rank"), as_int)
    node_claims.add_member("master_addr", root.member("main_process_ip"), host)
    port = root.member("main_process_port")
    node_claims.add_member("master_port", port, free_port)
    kind = root.member("distributed_type")
    if kind is not None and root.text("distributed_type") not in ("", "NO"):
        if machines is None:
            _default(node_claims, "nodes", 1, kind, "num_machines", Relation.REQUIRES)
        if port is None or port.node.value is None:
            _default(node_claims, "master_port", _DEFAULT_PORT, kind, "main_process_port", Relation.SETS)
    node_claims.add_member("rendezvous_backend_unread", root.member("rdzv_backend"), as_text)
    node_claims.add_member("mixed_precision", root.member("mixed_precision"), _precision)
    devices = root.member("gpu_ids")
    if devices is not None and devices.node.value not in (None, "all"):
        # Accelerate overwrites these variables.
        node_claims.add(
            "env.CUDA_VISIBLE_DEVICES", as_text(_scalar_value(devices.node)), devices, strength=Strength.FLAG
        )


def _default(
    node_claims: NodeClaims, quantity: str, value: int, member: Member, missing: str, relation: Relation
) -> None:
    claim = node_claims.add(quantity, Known(value), member, relation=relation, strength=Strength.DEFAULT)
    spelled = f"{claim.spelling} (without {missing})"
    node_claims.claims[-1] = Claim(
        quantity, Known(value), claim.span, spelled, claim.source, claim.scope, claim.strength, relation
    )


def _state_deepspeed(node_claims: NodeClaims, root: Node, tree: Tree) -> list[Reference]:
    section = root.at("deepspeed_config")
    if section is None or section.kind is not Kind.OBJECT:
        return []
    references = []
    for key, role in (("deepspeed_config_file", "config"), ("deepspeed_hostfile", "hostfile")):
        member = section.member(key)
        path = section.text(key)
        target = tree.resolve(path, relative_to=node_claims.file.path) if path and path != "none" else None
        if member is not None and target is not None:
            references.append(
                Reference(posixpath.normpath(target), role, node_claims.span(member.node), node_claims.scope)
            )
    node_claims.add_member("multinode_launcher", section.member("deepspeed_multinode_launcher"), as_text)
    if section.text("deepspeed_config_file") in ("", "none"):
        inner = NodeClaims(node_claims.file, "deepspeed", node_claims.scope)
        inner.add_member("gradient_accumulation_steps", section.member("gradient_accumulation_steps"), _unless_auto)
        inner.add_member("gradient_clipping", section.member("gradient_clipping"), _unless_auto)
        inner.add_member("zero_stage", section.member("zero_stage"))
        node_claims.claims.extend(inner.claims)
    return references


def _state_sections(node_claims: NodeClaims, root: Node) -> None:
    section = root.at("fsdp_config")
    state_fsdp(node_claims, section.in_force if section is not None else ())
    for name, quantities in (("megatron_lm_config", _MEGATRON), ("parallelism_config", _PARALLELISM)):
        section = root.at(name)
        for member in section.in_force if section is not None else ():
            quantity = quantities.get(member.key)
            if quantity is not None:
                node_claims.add_member(quantity, member, as_int)


def _scalar_value(node: Node) -> Value:
    return Known(node.value) if node.kind is Kind.SCALAR else Unresolved("a placeholder that is replaced later")


def _precision(value: Value) -> Value:
    """`no` without quotation marks is YAML's false."""
    return lift(lambda item: "no" if item is False else str(item).lower(), value)


def _processes(value: Value) -> Value:
    if value == Known(-1):
        return Unresolved("-1: the command line must give the number")
    return as_int(value)


def host(value: Value) -> Value:
    """A host name, unless it is a placeholder."""
    from preflight.sources.launchers.claim_builder import unresolved_if_placeholder

    return unresolved_if_placeholder(as_text(value))


def free_port(value: Value) -> Value:
    """A port; with 0 accelerate uses any free one."""
    return Unresolved("0: any free port") if value in (Known(0), Known("0")) else as_int(value)


def _unless_auto(value: Value) -> Value:
    return AUTO if value == Known("auto") else value
