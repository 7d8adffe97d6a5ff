"""Claims of DeepSpeed's keys, in a JSON file of their own or in gpt-neox's YAML.

A claim's location is the *value* (`64`), its spelling the whole pair (`"train_batch_size": 64`). A value of the wrong
type (`"64"`, 1.5, 0) is claimed as written, so that a rule can judge it; only values that DeepSpeed or a trainer fills
in later (`"auto"`, a placeholder) are unresolved.
"""

from __future__ import annotations

from preflight._util.budget import truncate
from preflight.model.job import AUTO, Claim, Known, Unresolved, Value
from preflight.sources.formats.structured import Kind, Member, Node, NodeClaims

#: DeepSpeed's keys (deepspeed/runtime/constants.py, config.py, zero/config.py; 0.16).
QUANTITY_OF: dict[tuple[str, ...], str] = {
    ("train_batch_size",): "train_batch_size",
    ("train_micro_batch_size_per_gpu",): "micro_batch_size_per_gpu",
    ("gradient_accumulation_steps",): "gradient_accumulation_steps",
    ("zero_optimization", "stage"): "zero_stage",
    ("zero_optimization", "offload_optimizer", "device"): "offload_optimizer_device",
    ("zero_optimization", "offload_param", "device"): "offload_param_device",
    ("zero_optimization", "overlap_comm"): "overlap_comm",
    ("zero_optimization", "reduce_bucket_size"): "reduce_bucket_size",
    ("fp16", "enabled"): "fp16_enabled",
    ("fp16", "type"): "fp16_type",
    ("fp16", "loss_scale"): "fp16_loss_scale",
    ("bf16", "enabled"): "bf16_enabled",
    ("bfloat16", "enabled"): "bf16_enabled",
    ("communication_data_type",): "communication_data_type",
    ("elasticity", "enabled"): "elasticity_enabled",
    ("tensor_parallel", "autotp_size"): "tensor_parallel_size",
    ("gradient_clipping",): "gradient_clipping",
    ("optimizer", "type"): "optimizer_type",
    ("optimizer", "params", "torch_adam"): "torch_adam",
    ("optimizer", "params", "lr"): "learning_rate",
    ("optimizer", "params", "weight_decay"): "weight_decay",
    ("scheduler", "params", "warmup_max_lr"): "learning_rate",
    ("scheduler", "params", "warmup_num_steps"): "warmup_steps",
    ("dataloader_drop_last",): "dataloader_drop_last",
}
_SECTIONS = frozenset(path[:depth] for path in QUANTITY_OF for depth in range(1, len(path)))
#: A section with more keys than this is not a configuration.
_MAX_NAMES = 300
#: Sections whose keys are also claimed by name.
_NAMED = frozenset(path for path in _SECTIONS if path[0] == "zero_optimization")


def state(node_claims: NodeClaims, root: Node, *, of_others: bool = False) -> None:
    """State the claims of a configuration, in the order of its keys; of duplicate keys the last is in force.

    `of_others`: DeepSpeed's keys are mixed with those of another framework, so top-level keys are not claimed by name.
    """
    if not of_others:
        for member in truncate(root.in_force, _MAX_NAMES, "keys"):
            _name(node_claims, member, (member.key,))
    _section(node_claims, root, ())


def _section(node_claims: NodeClaims, node: Node, above: tuple[str, ...]) -> None:
    for position, member in enumerate(node.in_force):
        path = (*above, member.key)
        if above in _NAMED and position < _MAX_NAMES:
            _name(node_claims, member, path)
        if path in _SECTIONS and member.node.kind is Kind.OBJECT:
            _section(node_claims, member.node, path)
        elif path in QUANTITY_OF:
            node_claims.add(QUANTITY_OF[path], _value(node_claims, member.node), member)
        elif path == ("zero_optimization",) and member.node.value is True:
            # An old spelling: "zero_optimization": true is stage 1.
            node_claims.add("zero_stage", Known(1), member)


def _name(node_claims: NodeClaims, member: Member, path: tuple[str, ...]) -> None:
    node_claims.claims.append(
        Claim(
            quantity="deepspeed_key",
            value=_filled_in(member.key) or Known(".".join(path)),
            span=node_claims.places.span(member.key_start, member.key_end),
            spelling=node_claims.file.text[member.key_start : member.key_end][:100],
            source=node_claims.source,
            scope=node_claims.scope,
            strength=node_claims.strength,
        )
    )


def _filled_in(key: str) -> Unresolved | None:
    return Unresolved(f"{key[:60]}: a placeholder that is replaced later") if "{{" in key or "${" in key else None


def _value(node_claims: NodeClaims, node: Node) -> Value:
    if node.kind is Kind.SCALAR:
        return AUTO if node.value == "auto" else Known(node.value)
    text = node_claims.file.text[node.start : node.end]
    if node.kind is Kind.TEMPLATE:
        return Unresolved(f"{text[:60]}: a placeholder that is replaced later")
    if node.kind is Kind.BROKEN:
        return Unresolved(f"{text[:60]!r} is not a value")
    # A list or an object instead of a number: a rule will quote the text as written.
    return Known(" ".join(text[:200].split()))
