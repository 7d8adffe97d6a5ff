"""Settings of Lightning's Trainer on a line: Hydra's `trainer.devices=8`, LightningCLI's `--trainer.devices 8`.

Under srun or torchrun, Lightning compares these settings with the started processes and stops when they differ
(SLURMEnvironment.validate_settings and TorchElasticEnvironment.validate_settings, lightning 2.x). Without either it
starts the processes of its node itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from preflight.model.job import Known, Plain, Relation, Unresolved, Value, as_int, is_whole_number, lift
from preflight.sources.base import LaunchLine, Word
from preflight.sources.launchers.claim_builder import ClaimBuilder
from preflight.sources.launchers.option_parser import GivenOption, concatenate, join_spans, known_prefix
from preflight.sources.launchers.python_program import is_python

_KEY = re.compile(r"(?P<sign>\+\+|\+|--)?(?P<key>[A-Za-z_][\w-]{0,80}(?:\.[\w-]{1,80}){0,8})(?P<equals>=)?")
#: Sizes that other frameworks also have.
_SIZES = {
    "model.tensor_model_parallel_size": "tensor_parallel_size",
    "model.pipeline_model_parallel_size": "pipeline_parallel_size",
    "model.context_parallel_size": "context_parallel_size",
    "model.expert_model_parallel_size": "expert_parallel_size",
    "model.micro_batch_size": "micro_batch_size_per_gpu",
    "model.global_batch_size": "train_batch_size",
    "model.data.num_workers": "dataloader_workers",
    "trainer.accumulate_grad_batches": "gradient_accumulation_steps",
}
#: The batch size of a rank in the configurations of Paddle's suites: `-o Train.loader.batch_size_per_card=32`.
_BATCH_SIZE = re.compile(
    r"(?:\w+\.)*(?:global|(?:data_?loader\.)?train(?:_?reader|_?dataset)?|runner)\.(?:\w+\.)*(?:train_)?batch_?size(?:_per_card)?",
    re.IGNORECASE,
)
_DEVICES = ("trainer.devices", "trainer.gpus")
_TASK_STARTERS = ("srun", "mpirun", "horovodrun", "jsrun", "aprun")


def state_overrides(builder: ClaimBuilder, line: LaunchLine, words: Sequence[Word]) -> None:
    """State the nodes, processes and batch sizes that the overrides of a program set."""
    found = find_overrides(words)
    for key, quantity in _SIZES.items():
        builder.add_setting(quantity, found.get(key), as_int)
    batches = [given for key, given in found.items() if _BATCH_SIZE.fullmatch(key)]
    builder.add_setting("given_batch_size", batches[0] if len(batches) == 1 else None, as_int)
    nodes = found.get("trainer.num_nodes")
    builder.add_setting("nodes", nodes, as_int, relation=Relation.REQUIRES)
    devices = next((found[key] for key in _DEVICES if key in found), None)
    alone = is_python(line.words) and not any(wrapper in _TASK_STARTERS for wrapper in line.wrappers)
    relation = Relation.SETS if alone else Relation.REQUIRES
    builder.add_setting("processes_per_node", devices, _device_count, relation=relation)


def starts_ranks(words: Sequence[Word]) -> bool:
    """Whether these arguments make Lightning start several processes by itself."""
    found = find_overrides(words)
    counts = [found[key] for key in (*_DEVICES, "trainer.num_nodes") if key in found]
    for given in counts:
        value = as_int(given.value) if given.dest == "trainer.num_nodes" else _device_count(given.value)
        if isinstance(value, Known) and isinstance(value.value, int) and value.value > 1:
            return True
    return False


def find_overrides(words: Sequence[Word]) -> dict[str, GivenOption]:
    """The settings by dotted key, with underscores for hyphens; the last of several counts.

    `a.b=2`, `++a.b=2`, `--a.b=2` and `--a.b 2` set `a.b`. `--a.b` followed by another option is a switch. A key without
    a dot counts only in the form `key=2`.
    """
    found: dict[str, GivenOption] = {}
    for index, word in enumerate(words):
        text = known_prefix(word)
        match = _KEY.match(text)
        if match is None or not (match["equals"] or match["sign"] == "--"):
            continue
        key = match["key"].replace("-", "_")
        if match["equals"]:
            if "." in key or match["sign"] != "--":
                found[key] = GivenOption(key, _value_after(word, match.end()), word.span, word.spelling)
        elif "." in key and match.end() == len(text):
            value = words[index + 1] if index + 1 < len(words) else None
            if value is None or known_prefix(value).startswith("--"):
                found[key] = GivenOption(key, Known(True), word.span, word.spelling)
                continue
            found[key] = GivenOption(
                key, value.value, join_spans(word.span, value.span), f"{word.spelling} {value.spelling}"
            )
    return found


def _value_after(word: Word, start: int) -> Value:
    if not isinstance(word.value, Unresolved):
        return lift(lambda item: str(item)[start:], word.value)
    first = word.parts[0] if word.parts else None
    if not isinstance(first, Known) or len(str(first.value)) < start:
        return word.value
    rest = str(first.value)[start:]
    return (
        concatenate([*([Known(rest)] if rest else []), *word.parts[1:]]) if rest or len(word.parts) > 1 else Known("")
    )


def _device_count(value: Value) -> Value:
    def count(item: Plain) -> Plain:
        text = str(item).strip("'\"")
        listed = re.fullmatch(r"\[([\d,\s]*)\]", text)
        if listed is not None:
            return len([part for part in listed[1].split(",") if part.strip()])
        if "," in text:
            return len([part for part in text.split(",") if part.strip()])
        if not is_whole_number(text):
            raise ValueError(f"{text}: as many processes as the node has devices")
        return int(text)

    return lift(count, value)
