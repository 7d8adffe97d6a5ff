"""What DeepSpeed's keys claim, wherever they stand: in a JSON file of their own, or in gpt-neox's YAML.

A claim's place is the *value* (`64`), its spelling the whole pair (`"train_batch_size": 64`). A value of the
wrong type (`"64"`, 1.5, 0) is claimed as it stands, so a rule can judge it; only what DeepSpeed or a trainer
fills in later (`"auto"`, a placeholder) is unresolved.
"""

from __future__ import annotations

from preflight.job import Claim, Known, Unresolved, Value
from preflight.sources.structured import Kind, Member, Node, NodeStating

AUTO = Unresolved("auto: filled in by the trainer")

#: Where DeepSpeed looks for what (deepspeed/runtime/constants.py, config.py, zero/config.py; 0.16).
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
#: A section with more keys than this is no configuration.
_MOST_NAMES = 300
#: Sections whose keys are claimed by name, too.
_NAMED = frozenset(path for path in _SECTIONS if path[0] == "zero_optimization")


def state(stating: NodeStating, root: Node, *, of_others: bool = False) -> None:
    """State the claims of a configuration, in the order of its keys; of equal keys the last is in force.

    `of_others`: keys of another framework stand beside DeepSpeed's own, so those at the top are not claimed by name.
    """
    if not of_others:
        for member in root.in_force[:_MOST_NAMES]:
            _name(stating, member, (member.key,))
    _section(stating, root, ())


def _section(stating: NodeStating, node: Node, above: tuple[str, ...]) -> None:
    for position, member in enumerate(node.in_force):
        path = (*above, member.key)
        if above in _NAMED and position < _MOST_NAMES:
            _name(stating, member, path)
        if path in _SECTIONS and member.node.kind is Kind.OBJECT:
            _section(stating, member.node, path)
        elif path in QUANTITY_OF:
            stating.say(QUANTITY_OF[path], _value(stating, member.node), member)
        elif path == ("zero_optimization",) and member.node.value is True:
            # An old spelling: "zero_optimization": true is stage 1.
            stating.say("zero_stage", Known(1), member)


def _name(stating: NodeStating, member: Member, path: tuple[str, ...]) -> None:
    stating.claims.append(
        Claim(
            quantity="deepspeed_key",
            value=_filled_in(member.key) or Known(".".join(path)),
            span=stating.places.span(member.key_start, member.key_end),
            spelling=stating.file.text[member.key_start : member.key_end][:100],
            source=stating.source,
            scope=stating.scope,
            strength=stating.strength,
        )
    )


def _filled_in(key: str) -> Unresolved | None:
    return (
        Unresolved(f"{key[:60]}: a placeholder that something fills in later") if "{{" in key or "${" in key else None
    )


def _value(stating: NodeStating, node: Node) -> Value:
    if node.kind is Kind.SCALAR:
        return AUTO if node.value == "auto" else Known(node.value)
    text = stating.file.text[node.start : node.end]
    if node.kind is Kind.TEMPLATE:
        return Unresolved(f"{text[:60]}: a placeholder that something fills in later")
    if node.kind is Kind.BROKEN:
        return Unresolved(f"{text[:60]!r} is no value")
    # A list or an object where a number belongs: the text as written is what a rule will quote.
    return Known(" ".join(text[:200].split()))
