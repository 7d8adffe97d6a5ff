"""What the arguments of Hugging Face's trainer claim on a command line, and the file of arguments that a line names.

The options of a batch (`--per_device_train_batch_size` ...) are read with those of other frameworks in `arguments`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from preflight.job import Claim, Known, Reference, Unresolved, Value
from preflight.sources.base import LaunchLine, SourceFile, Tree, Word
from preflight.sources.launchers.options import joined, scan, table, text_of
from preflight.sources.launchers.paths import relative
from preflight.sources.launchers.stating import Stating
from preflight.sources.trainer_config import ROLE, TrainerConfigSource
from preflight.sources.trainer_settings import PRECISIONS, SETTINGS, precision_of

#: Read by `arguments`, whatever framework's they are.
_ELSEWHERE = frozenset(
    [
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "ddp_timeout",
        "ddp_backend",
        "dataloader_num_workers",
        "output_dir",
        "save_total_limit",
    ]
)
#: Options that may stand alone: `--bf16`, `--bf16 True`, `--bf16=true`.
_SWITCHES = frozenset([*PRECISIONS, "gradient_checkpointing", "load_best_model_at_end"])
_VALUED = [name for name in SETTINGS if name not in _ELSEWHERE and name not in _SWITCHES]
_OPTIONS = table(
    {name: f"--{name} --{name.replace('_', '-')}" for name in _VALUED}, abbreviations=False, interleaved=True
)
#: What `--fsdp` begins with (transformers/trainer_utils.py, FSDPOption).
_FSDP_WORDS = ("full_shard", "shard_grad_op", "hybrid_shard", "hybrid_shard_zero2", "auto_wrap", "offload")
_WORDS = ("true", "false", "1", "0", "yes", "no")
_FILES = (".yaml", ".yml", ".json")
#: Files that a line names are looked at; so many words behind a program are its arguments and not data.
_MOST_WORDS = 400


def trainer_claims(
    line: LaunchLine, words: Sequence[Word], tree: Tree
) -> tuple[tuple[Claim, ...], tuple[Reference, ...]]:
    """The claims of a program's arguments in the launch's scope, and the file of training arguments they name."""
    words = words[:_MOST_WORDS]
    stating = Stating("arguments", line.scope, line.command.condition)
    scanned = scan(words, _OPTIONS)
    for name in _VALUED:
        quantity, reader = SETTINGS[name]
        stating.given(quantity, scanned.last(name), reader)
    _state_switches(stating, words)
    _state_sharding(stating, words)
    references = tuple(_files(line, words, tree))
    if references:
        _state_overrides(stating, words)
    return tuple(stating.claims), references


def _state_switches(stating: Stating, words: Sequence[Word]) -> None:
    found: dict[str, tuple[Value, Word, Word]] = {}
    for index, word in enumerate(words):
        text = text_of(word) or ""
        name, equals, behind = text.partition("=")
        dest = name[2:].replace("-", "_") if name.startswith("--") else ""
        if dest not in _SWITCHES:
            continue
        value: Value = Known(behind) if equals else Known(True)
        last = word
        if not equals and index + 1 < len(words):
            following = words[index + 1]
            unknown = isinstance(following.value, Unresolved) and not following.many
            if (unknown and not following.spelling.startswith("-")) or (text_of(following) or "").lower() in _WORDS:
                value, last = following.value, following
        found[dest] = (value, word, last)
    for dest, (value, word, last) in found.items():
        span = joined(word.span, last.span) if last is not word else word.span
        spelling = word.spelling if last is word else f"{word.spelling} {last.spelling}"
        if dest in PRECISIONS:
            precision = precision_of(dest, value)
            if precision is not None:
                stating.say("mixed_precision", precision, span, spelling)
        else:
            quantity, reader = SETTINGS[dest]
            stating.say(quantity, reader(value), span, spelling)


def _state_sharding(stating: Stating, words: Sequence[Word]) -> None:
    """`--deepspeed FILE` and `--fsdp "full_shard auto_wrap"`; without a value they are another program's flags."""
    for word, following in itertools.pairwise(words):
        name, equals, value = (text_of(word) or "").partition("=")
        given = value if equals else text_of(following) or ""
        if name == "--deepspeed" and given.endswith((".json", ".jsonc", ".hjson")):
            stating.say("sharding_library", Known("deepspeed"), word.span, word.spelling)
        elif name == "--fsdp" and given.split()[:1] and given.split()[0] in _FSDP_WORDS:
            stating.say("sharding_library", Known("fsdp"), word.span, word.spelling)


def _files(line: LaunchLine, words: Sequence[Word], tree: Tree) -> Iterator[Reference]:
    """The files on the line that hold training arguments."""
    source = TrainerConfigSource()
    for word in words:
        path = (text_of(word) or "").rpartition("=")[2]
        if not path.lower().endswith(_FILES):
            continue
        target = relative(path, line, tree)
        file = tree.read(target) if target is not None else None
        if target is not None and isinstance(file, SourceFile) and source.recognises(file):
            yield Reference(target, ROLE, word.span, line.scope)


def _state_overrides(stating: Stating, words: Sequence[Word]) -> None:
    """`learning_rate=1e-5` behind a file of arguments."""
    for word in words:
        name, equals, behind = (text_of(word) or "").partition("=")
        if equals and name in SETTINGS:
            quantity, reader = SETTINGS[name]
            stating.say(quantity, reader(Known(behind)), word.span, word.spelling)
