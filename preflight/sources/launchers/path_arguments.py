"""Claims about paths from a training program's arguments: where checkpoints are written and read, and input files.

Only options with the same meaning in every known program are read: Megatron-LM (megatron/training/arguments.py,
core_r0.12), Hugging Face's trainer (`--output_dir`), and the usual names in users' own scripts. `--checkpoint_dir` and
`--ckpt_path` are not among them: some programs read from it, and others write to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from preflight.model.job import Claim, Known, as_int
from preflight.sources.base import LaunchLine, Word
from preflight.sources.launchers.claim_builder import ClaimBuilder, as_text
from preflight.sources.launchers.option_parser import GivenOption, scan, table, text_of

_OPTIONS = table(
    {
        "checkpoint_path": "--output_dir --output-dir --out_dir --out-dir --save_dir --save-dir --default_root_dir",
        "resume_path": "--resume_from_checkpoint --resume-from-checkpoint --resume_from --resume-from",
        "checkpoints_kept": "--save_total_limit --save-total-limit",
        "input_file": "--vocab-file --vocab_file --merge-file --merge_file --merges_file --tokenizer-model"
        " --tokenizer_model --tokenizer-file --tokenizer_path",
        "checkpoint_or_flag": "--save",
        "resume_or_flag": "--load --resume",
    },
    abbreviations=False,
    interleaved=True,
)
#: Values that are certainly paths, not the name of a model on a hub or the word after a flag.
_IS_PATH = re.compile(r"^(?:/|\./|\.\./|~/|\$)")
_IS_FILE = re.compile(r"\.(?:json|model|txt|vocab|bpe|tiktoken)$")


def path_claims(line: LaunchLine, words: Sequence[Word]) -> tuple[Claim, ...]:
    """The claims of a program's arguments about its paths, in the scope of the launch."""
    builder = ClaimBuilder("arguments", line.scope, line.command.condition)
    scanned = scan(words, _OPTIONS)
    builder.add_setting("checkpoint_path", scanned.last("checkpoint_path"), as_text)
    builder.add_setting("checkpoints_kept", scanned.last("checkpoints_kept"), as_int)
    resumed = scanned.last("resume_path")
    # In Hugging Face's trainer `True` means the last checkpoint of its own output folder.
    if resumed is not None and _text(resumed).lower() not in ("true", "false", "1", "0", "none", "auto"):
        builder.add_setting("resume_path", resumed, as_text)
    for dest, quantity in (("checkpoint_or_flag", "checkpoint_path"), ("resume_or_flag", "resume_path")):
        given = scanned.last(dest)
        if given is not None and "/" in _text(given):
            builder.add_setting(quantity, given, as_text)
    for given in scanned.every("input_file"):
        if _IS_PATH.search(_text(given)) or _IS_FILE.search(_text(given)):
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
        if _IS_PATH.search(_text(given)) and not _text(given).startswith("$"):
            yield given


def _text(given: GivenOption) -> str:
    return str(given.value.value) if isinstance(given.value, Known) else ""
