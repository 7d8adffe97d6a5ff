"""Claims about the model from a training program's arguments: its shape, pipeline and checkpoints.

Options of Megatron-LM (megatron/training/arguments.py, core_r0.12, and Megatron-DeepSpeed) and of programs that name a
published model. Number formats and other options of Hugging Face's trainer are in `trainer_arguments`.
"""

from __future__ import annotations

from collections.abc import Sequence

from preflight.model.job import Claim, Known, as_int, lift
from preflight.sources.base import LaunchLine, Word
from preflight.sources.launchers.claim_builder import ClaimBuilder, as_text
from preflight.sources.launchers.option_parser import GivenOption, scan, table

_NUMBERS = {
    "num_layers": "--num-layers",
    "vocabulary_size": "--vocab-size",
    "hidden_size": "--hidden-size",
    "ffn_hidden_size": "--ffn-hidden-size",
    "expert_ffn_hidden_size": "--moe-ffn-hidden-size",
    "attention_heads": "--num-attention-heads",
    "query_groups": "--num-query-groups --num-key-value-heads",
    "sequence_length": "--seq-length",
    "num_experts": "--num-experts",
    "layers_per_virtual_stage": "--num-layers-per-virtual-pipeline-stage",
    "train_samples": "--train-samples",
    "train_steps": "--train-iters --max_steps",
    "save_interval": "--save-interval",
}
_VALUED = {
    **_NUMBERS,
    "recompute": "--recompute-granularity",
    "expert_layers": "--moe-layer-freq",
    "fp8_format": "--fp8-format",
    "fp16_loss_scale": "--loss-scale",
    "model_name": "--model_name --model --pretrained_model_name_or_path"
    " --base_model --pretrain --actor_model_name_or_path --actor-model-name-or-path",
}
_FLAGS = {
    "gated_feed_forward": "--swiglu",
    "sequence_parallel": "--sequence-parallel",
    "distributed_optimizer": "--use-distributed-optimizer",
}
_OPTIONS = table(
    _VALUED,
    {
        **_FLAGS,
        "recomputes": "--recompute-activations",
        "checkpoints": "--checkpoint-activations --deepspeed-activation-checkpointing",
        "query_groups_on": "--group-query-attention",
    },
    abbreviations=False,
    interleaved=True,
)


def model_claims(line: LaunchLine, words: Sequence[Word]) -> tuple[Claim, ...]:
    """The claims of a program's arguments about its model, in the scope of the launch."""
    builder = ClaimBuilder("arguments", line.scope, line.command.condition)
    scanned = scan(words, _OPTIONS)
    for quantity in _NUMBERS:
        builder.add_setting(quantity, scanned.last(quantity), as_int)
    for quantity in ("expert_layers", "fp8_format", "model_name"):
        builder.add_setting(quantity, scanned.last(quantity), as_text)
    builder.add_setting("fp16_loss_scale", scanned.last("fp16_loss_scale"), lambda v: lift(lambda i: float(str(i)), v))
    for quantity in _FLAGS:
        builder.add_setting(quantity, scanned.last(quantity))
    _recompute(builder, scanned.last("recompute"), scanned.last("recomputes"), scanned.last("checkpoints"))
    return tuple(builder.claims)


def _recompute(
    builder: ClaimBuilder, granularity: GivenOption | None, selective: GivenOption | None, full: GivenOption | None
) -> None:
    if granularity is not None:
        builder.add_setting("recompute", granularity, as_text)
    elif full is not None:
        builder.add_setting("recompute", full, lambda _: Known("full"))
    elif selective is not None:
        builder.add_setting("recompute", selective, lambda _: Known("selective"))
