"""Claims from a training program's arguments: options of frameworks that many scripts share.

Only options whose meaning does not depend on the script are read: DeepSpeed's own, Megatron-LM's parallel and batch
sizes (megatron/training/arguments.py, core_r0.12), and Hugging Face's `TrainingArguments` (transformers 4.50).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from preflight.model.job import Claim, Known, Reference, Value, as_int, lift
from preflight.sources.base import LaunchLine, Tree, Word
from preflight.sources.launchers.claim_builder import ClaimBuilder, as_text
from preflight.sources.launchers.model_arguments import model_claims
from preflight.sources.launchers.option_parser import scan, table, text_of
from preflight.sources.launchers.overrides import state_overrides
from preflight.sources.launchers.path_arguments import path_claims
from preflight.sources.launchers.paths import paths_of, relative

_CONFIG = "config"
_OPTIONS = table(
    {
        "deepspeed_config": "--deepspeed_config --deepspeed-config --ds_config --ds-config --deepspeed_config_file",
        "data_path": "--data-path --data_path --train-data --train_data --train-data-path --data_dir --data-dir",
        "tensor_parallel_size": "--tensor-model-parallel-size --tensor_model_parallel_size",
        "pipeline_parallel_size": "--pipeline-model-parallel-size --pipeline_model_parallel_size",
        "context_parallel_size": "--context-parallel-size --context_parallel_size",
        "expert_parallel_size": "--expert-model-parallel-size --expert_model_parallel_size",
        "micro_batch_size_per_gpu": "--micro-batch-size --micro_batch_size --per_device_train_batch_size"
        " --per-device-train-batch-size --per_device_training_batch_size",
        "train_batch_size": "--global-batch-size --global_batch_size",
        "gradient_accumulation_steps": "--gradient_accumulation_steps --gradient-accumulation-steps",
        "timeout_minutes": "--distributed-timeout-minutes --distributed_timeout_minutes",
        "timeout_s": "--ddp_timeout --ddp-timeout",
        "backend": "--distributed-backend --ddp_backend --dist-backend --dist_backend",
        "dataloader_workers": "--dataloader_num_workers --dataloader-num-workers",
        "zero_stage": "--zero_stage",
        "local_rank": "--local_rank --local-rank",
        "given_rank": "--rank --node_rank --node-rank --machine_rank --machine-rank --process_id --process-id"
        " --trainer_id --trainer-id",
        "given_world_size": "--world_size --world-size --num_processes --num-processes --num_trainers --trainers",
        "given_batch_size": "--batch_size --batch-size --train_batch_size --train-batch-size",
    },
    # `--deepspeed` is a flag of DeepSpeed's own argparse helper and takes a file in Hugging Face's Trainer.
    {"deepspeed": "--deepspeed"},
    abbreviations=False,
    interleaved=True,
)
_NUMBERS = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "context_parallel_size",
    "expert_parallel_size",
    "micro_batch_size_per_gpu",
    "train_batch_size",
    "gradient_accumulation_steps",
    "dataloader_workers",
    "zero_stage",
    "local_rank",
    "given_rank",
    "given_world_size",
    "given_batch_size",
)
_JSON = (".json", ".jsonc", ".hjson")


def is_one_of_several(words: Sequence[Word]) -> bool:
    """Whether a program's arguments make it one of several processes: its own rank and the number of ranks."""
    scanned = scan(words, _OPTIONS)
    return scanned.last("given_rank") is not None and scanned.last("given_world_size") is not None


def argument_claims(
    line: LaunchLine, words: Sequence[Word], tree: Tree
) -> tuple[tuple[Claim, ...], tuple[Reference, ...]]:
    """The claims of a program's arguments in the scope of the launch, and the configuration files they name."""
    builder = ClaimBuilder("arguments", line.scope, line.command.condition)
    references: list[Reference] = []
    scanned = scan(words, _OPTIONS)
    for quantity in _NUMBERS:
        builder.add_setting(quantity, scanned.last(quantity), as_int)
    state_overrides(builder, line, words)
    builder.add_setting("backend", scanned.last("backend"), as_text)
    builder.add_setting("process_group_timeout_s", scanned.last("timeout_minutes"), _times(60))
    builder.add_setting("process_group_timeout_s", scanned.last("timeout_s"), as_int)
    for data in scanned.every("data_path"):
        # Megatron's --data-path may begin with a weight (`0.3 corpus-a 0.7 corpus-b`), which is not a path.
        if not isinstance(data.value, Known) or not _is_number(str(data.value.value)):
            builder.add_setting("data_path", data, as_text)
    config = scanned.last("deepspeed_config")
    for path in paths_of(config.value, config.parts) if config is not None else ():
        target = relative(path, line, tree)
        if config is not None and target is not None:
            references.append(Reference(target, _CONFIG, config.span, line.scope))
    references.extend(_hugging_face(line, words, tree))
    references.extend(_paddle_model(line, words, tree))
    return (*builder.claims, *model_claims(line, words), *path_claims(line, words)), tuple(references)


def _hugging_face(line: LaunchLine, words: Sequence[Word], tree: Tree) -> list[Reference]:
    """The references of `--deepspeed ds_config.json` and `--deepspeed=ds_config.json`."""
    found = []
    for index, word in enumerate(words):
        text = text_of(word) or ""
        path, span = "", word.span
        if text.startswith("--deepspeed="):
            path = text.partition("=")[2]
        elif text == "--deepspeed" and index + 1 < len(words):
            path, span = text_of(words[index + 1]) or "", words[index + 1].span
        target = relative(path, line, tree) if path.endswith(_JSON) else None
        if target is not None:
            found.append(Reference(target, _CONFIG, span, line.scope))
    return found


def _paddle_model(line: LaunchLine, words: Sequence[Word], tree: Tree) -> list[Reference]:
    """The references of `-m config.yaml` and `-m=config.yaml`, the model configuration of PaddleRec's trainers."""
    found = []
    for index, word in enumerate(words):
        text = text_of(word) or ""
        if text == "-m" and index + 1 < len(words):
            path, span = text_of(words[index + 1]) or "", words[index + 1].span
        elif text.startswith("-m="):
            path, span = text.partition("=")[2], word.span
        else:
            continue
        target = relative(path, line, tree) if path.endswith((".yaml", ".yml")) else None
        if target is not None:
            found.append(Reference(target, "model", span, line.scope))
    return found


def _times(factor: int) -> Callable[[Value], Value]:
    return lambda value: lift(lambda item: int(float(str(item)) * factor), value)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
