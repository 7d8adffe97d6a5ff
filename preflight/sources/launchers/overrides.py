"""Settings of Lightning's Trainer on a line: Hydra's `trainer.devices=8`, LightningCLI's `--trainer.devices 8`.

Under srun or torchrun Lightning compares what it is told with what was started (SLURMEnvironment.validate_settings and
TorchElasticEnvironment.validate_settings, lightning 2.x) and stops where they differ. Without either it starts the
processes of its node itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from preflight.job import Known, Plain, Relation, Unresolved, Value, as_int, lift
from preflight.lazy.patterns import lazy_pattern
from preflight.sources.base import LaunchLine, Word
from preflight.sources.launchers.options import Given, glue, head, joined
from preflight.sources.launchers.programs import is_python
from preflight.sources.launchers.stating import Stating

_KEY = lazy_pattern(r"(?P<sign>\+\+|\+|--)?(?P<key>trainer\.\w+|model\.(?:\w+\.)?\w+)(?P<equals>=)?")
#: Sizes that other frameworks have too.
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
_DEVICES = ("trainer.devices", "trainer.gpus")
_SPREADING = ("srun", "mpirun", "horovodrun", "jsrun", "aprun")


def state_overrides(stating: Stating, line: LaunchLine, words: Sequence[Word]) -> None:
    """State what the overrides of a program say about nodes, processes and batch sizes."""
    found = _overrides(words)
    for key, quantity in _SIZES.items():
        stating.given(quantity, found.get(key), as_int)
    nodes = found.get("trainer.num_nodes")
    stating.given("nodes", nodes, as_int, relation=Relation.REQUIRES)
    devices = next((found[key] for key in _DEVICES if key in found), None)
    alone = is_python(line.words) and not any(wrapper in _SPREADING for wrapper in line.wrappers)
    relation = Relation.SETS if alone else Relation.REQUIRES
    stating.given("processes_per_node", devices, _count, relation=relation)


def starts_ranks(words: Sequence[Word]) -> bool:
    """Whether these arguments make Lightning start several processes by itself."""
    found = _overrides(words)
    counts = [found[key] for key in (*_DEVICES, "trainer.num_nodes") if key in found]
    for given in counts:
        value = as_int(given.value) if given.dest == "trainer.num_nodes" else _count(given.value)
        if isinstance(value, Known) and isinstance(value.value, int) and value.value > 1:
            return True
    return False


def _overrides(words: Sequence[Word]) -> dict[str, Given]:
    """The settings by their dotted keys; the last one of several counts."""
    found: dict[str, Given] = {}
    for index, word in enumerate(words):
        text = head(word)
        match = _KEY.match(text)
        if match is None or not (match["equals"] or match["sign"] == "--"):
            continue
        key = match["key"]
        if match["equals"]:
            found[key] = Given(key, _behind(word, match.end()), word.span, word.spelling)
        elif match.end() == len(text) and index + 1 < len(words):
            value = words[index + 1]
            found[key] = Given(key, value.value, joined(word.span, value.span), f"{word.spelling} {value.spelling}")
    return found


def _behind(word: Word, start: int) -> Value:
    if not isinstance(word.value, Unresolved):
        return lift(lambda item: str(item)[start:], word.value)
    first = word.parts[0] if word.parts else None
    if not isinstance(first, Known) or len(str(first.value)) < start:
        return word.value
    rest = str(first.value)[start:]
    return glue([*([Known(rest)] if rest else []), *word.parts[1:]]) if rest or len(word.parts) > 1 else Known("")


def _count(value: Value) -> Value:
    def count(item: Plain) -> Plain:
        text = str(item).strip("'\"")
        listed = re.fullmatch(r"\[([\d,\s]*)\]", text)
        if listed is not None:
            return len([part for part in listed[1].split(",") if part.strip()])
        if "," in text:
            return len([part for part in text.split(",") if part.strip()])
        if not text.isdigit():
            raise ValueError(f"{text}: as many processes as the node has devices")
        return int(text)

    return lift(count, value)
