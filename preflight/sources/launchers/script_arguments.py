"""Claims from a training program's arguments: options that many scripts share, the model's shape, and paths.

Only options whose meaning does not depend on the script are read: DeepSpeed's own, Megatron-LM's parallel and batch
sizes (megatron/training/arguments.py, core_r0.12), and Hugging Face's `TrainingArguments` (transformers 4.50).

Options of Megatron-LM (megatron/training/arguments.py, core_r0.12, and Megatron-DeepSpeed) and of programs that name a
published model. Number formats and other options of Hugging Face's trainer are in `trainer_arguments`.

Only options with the same meaning in every known program are read: Megatron-LM (megatron/training/arguments.py,
core_r0.12), Hugging Face's trainer (`--output_dir`), and the usual names in users' own scripts. `--checkpoint_dir` and
`--ckpt_path` are not among them: some programs read from it, and others write to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from preflight.model.job import Claim, Known, Reference, Value, as_int, lift
from preflight.sources.base import LaunchLine, Tree, Word
from preflight.sources.launchers.claim_builder import ClaimBuilder
from preflight.sources.launchers.framework_arguments import state_overrides
from preflight.sources.launchers.option_parser import (
    GivenOption,
    declared_table,
    file_references,
    known_text,
    relative,
    scan,
    text_of,
)
from preflight.sources.value_readers import as_text

_CONFIG = "config"
_OPTIONS = declared_table("script")
_NUMBERS = (
    *("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size", "expert_parallel_size"),
    *("micro_batch_size_per_gpu", "train_batch_size", "gradient_accumulation_steps", "dataloader_workers"),
    *("zero_stage", "local_rank", "given_rank", "given_world_size", "given_batch_size"),
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
    references.extend(file_references(scanned.last("deepspeed_config"), _CONFIG, line, tree))
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
        # `--deepspeed` alone is a switch of other programs.
        target = relative(path, line, tree) if path.endswith(_JSON) and not path.startswith("-") else None
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


_MODEL_OPTIONS = declared_table("script-model")
_MODEL_NUMBERS = (
    *("num_layers", "vocabulary_size", "hidden_size", "ffn_hidden_size", "expert_ffn_hidden_size", "attention_heads"),
    *("query_groups", "sequence_length", "num_experts", "layers_per_virtual_stage", "train_samples", "train_steps"),
    "save_interval",
)


def model_claims(line: LaunchLine, words: Sequence[Word]) -> tuple[Claim, ...]:
    """The claims of a program's arguments about its model, in the scope of the launch."""
    builder = ClaimBuilder("arguments", line.scope, line.command.condition)
    scanned = scan(words, _MODEL_OPTIONS)
    for quantity in _MODEL_NUMBERS:
        builder.add_setting(quantity, scanned.last(quantity), as_int)
    for quantity in ("expert_layers", "fp8_format", "model_name"):
        builder.add_setting(quantity, scanned.last(quantity), as_text)
    builder.add_setting("fp16_loss_scale", scanned.last("fp16_loss_scale"), lambda v: lift(lambda i: float(str(i)), v))
    for quantity in ("gated_feed_forward", "sequence_parallel", "distributed_optimizer"):
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


_PATH_OPTIONS = declared_table("script-paths")
#: Values that are certainly paths, not the name of a model on a hub or the word after a flag.
_IS_PATH = re.compile(r"^(?:/|\./|\.\./|~/|\$)")
_IS_FILE = re.compile(r"\.(?:json|model|txt|vocab|bpe|tiktoken)$")


def path_claims(line: LaunchLine, words: Sequence[Word]) -> tuple[Claim, ...]:
    """The claims of a program's arguments about its paths, in the scope of the launch."""
    builder = ClaimBuilder("arguments", line.scope, line.command.condition)
    scanned = scan(words, _PATH_OPTIONS)
    builder.add_setting("checkpoint_path", scanned.last("checkpoint_path"), as_text)
    builder.add_setting("checkpoints_kept", scanned.last("checkpoints_kept"), as_int)
    resumed = scanned.last("resume_path")
    # In Hugging Face's trainer `True` means the last checkpoint of its own output folder.
    if resumed is not None and known_text(resumed).lower() not in ("true", "false", "1", "0", "none", "auto"):
        builder.add_setting("resume_path", resumed, as_text)
    for dest, quantity in (("checkpoint_or_flag", "checkpoint_path"), ("resume_or_flag", "resume_path")):
        given = scanned.last(dest)
        if given is not None and "/" in known_text(given):
            builder.add_setting(quantity, given, as_text)
    for given in scanned.every("input_file"):
        if _IS_PATH.search(known_text(given)) or _IS_FILE.search(known_text(given)):
            builder.add_setting("input_file", given, as_text)
    for given in _data_paths(words):
        builder.add_setting("data_path", given, as_text)
    return tuple(builder.claims)


#: Options whose name contains a word for data, and whose value is certainly a path: `--data /corpus`,
#: `--train-root=/imagenet/train`.
_DATA_OPTION = re.compile(
    r"--(?:[a-z]+[-_.])?(?:data|datasets?|corpus|train|training|valid|val|validation|images?|imagenet|records?|shards?)"
    r"(?:[-_.]?(?:path|paths|dir|root|file|files|folder|prefix|location|url))?"
)
#: Options that are read by their spelling (`script_arguments`), and folders that a program writes.
_OTHER_OPTION = re.compile(
    r"--(?:data-path|data_path|train-data|train_data|train-data-path|data_dir|data-dir)$|--.*(?:out|log|save|cache|tmp|result)"
)
_MAX_OPTIONS = 200


def _data_paths(words: Sequence[Word]) -> Iterator[GivenOption]:
    """Yield each option that names data by an absolute or relative path."""
    for index, word in enumerate(words[:_MAX_OPTIONS]):
        text = text_of(word) or ""
        name, equals, value = text.partition("=")
        if _DATA_OPTION.fullmatch(name) is None or _OTHER_OPTION.match(name) is not None:
            continue
        if equals:
            given = GivenOption("data_path", Known(value), word.span, word.spelling)
        elif index + 1 < len(words):
            after = words[index + 1]
            given = GivenOption("data_path", after.value, after.span, f"{name} {after.spelling}")
        else:
            continue
        if _IS_PATH.search(known_text(given)) and not known_text(given).startswith("$"):
            yield given
