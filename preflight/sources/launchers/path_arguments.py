"""What the arguments of training programs say of paths: where checkpoints go and come from, and what ranks read.

Only spellings that mean the same in every program that was looked at: Megatron-LM (megatron/training/arguments.py,
core_r0.12), Hugging Face's trainer (`--output_dir`), and what scripts of one's own mostly call it. `--checkpoint_dir`
and `--ckpt_path` are not among them: half of the programs read there, and half of them write.
"""

from __future__ import annotations

from collections.abc import Sequence

from preflight.job import Claim, Known, as_int
from preflight.lazy.patterns import lazy_pattern
from preflight.sources.base import LaunchLine, Word
from preflight.sources.launchers.options import Given, scan, table
from preflight.sources.launchers.stating import Stating, as_text

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
#: What surely is a path and not the name of something on a hub, or a word behind a flag.
_IS_PATH = lazy_pattern(r"^(?:/|\./|\.\./|~/|\$)")
_IS_FILE = lazy_pattern(r"\.(?:json|model|txt|vocab|bpe|tiktoken)$")


def path_claims(line: LaunchLine, words: Sequence[Word]) -> tuple[Claim, ...]:
    """The claims of a program's arguments about its paths, in the launch's scope."""
    stating = Stating("arguments", line.scope, line.command.condition)
    scanned = scan(words, _OPTIONS)
    stating.given("checkpoint_path", scanned.last("checkpoint_path"), as_text)
    stating.given("checkpoints_kept", scanned.last("checkpoints_kept"), as_int)
    resumed = scanned.last("resume_path")
    # Hugging Face's trainer takes `True` for the last checkpoint of its own output folder.
    if resumed is not None and _text(resumed).lower() not in ("true", "false", "1", "0", "none", "auto"):
        stating.given("resume_path", resumed, as_text)
    for dest, quantity in (("checkpoint_or_flag", "checkpoint_path"), ("resume_or_flag", "resume_path")):
        given = scanned.last(dest)
        if given is not None and "/" in _text(given):
            stating.given(quantity, given, as_text)
    for given in scanned.every("input_file"):
        if _IS_PATH.search(_text(given)) or _IS_FILE.search(_text(given)):
            stating.given("input_file", given, as_text)
    return tuple(stating.claims)


def _text(given: Given) -> str:
    return str(given.value.value) if isinstance(given.value, Known) else ""
