"""Batch sizes in DeepSpeed's configuration and in the trainer's arguments."""

from __future__ import annotations

import itertools

from preflight.model.job import Claim, Job, Launch, Relation, Scope, strongest

#: The quantities whose product is checked, with their keys in the configuration.
BATCH = ("train_batch_size", "micro_batch_size_per_gpu", "gradient_accumulation_steps")
KEYS = {
    "train_batch_size": "train_batch_size",
    "micro_batch_size_per_gpu": "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
}


def configured(job: Job, quantity: str, scope: Scope) -> tuple[Claim, ...]:
    """The claims of DeepSpeed's configuration about a quantity in `scope`."""
    return strongest(c for c in job.about(quantity, scope) if c.source == "deepspeed")


def given_to_trainer(job: Job, quantity: str, scope: Scope) -> tuple[Claim, ...]:
    """The claims of the program's arguments, or of its script's `TrainingArguments`, about a quantity."""
    return strongest(
        c
        for c in job.about(quantity, scope)
        if c.source in ("arguments", "trainer", "python") and c.relation is Relation.SETS and not _is_option_default(c)
    )


def _is_option_default(claim: Claim) -> bool:
    return claim.source == "python" and claim.spelling.startswith("--")


def uses_hugging_face(job: Job, launch: Launch | None, scope: Scope) -> bool:
    """Whether the configuration goes through Hugging Face's trainer (`--deepspeed FILE`, `TrainingArguments`).

    A program that declares `--deepspeed` itself does not leave the option to the trainer's parser.
    """
    lists = [value for claim in job.about("declared_options", scope) for value in claim.alternatives]
    is_declared = any(isinstance(names, tuple) and "--deepspeed" in names for names in lists)
    if launch is not None and not is_declared:
        words = launch.arguments
        for word, following in itertools.zip_longest(words, words[1:]):
            if word is not None and word.startswith("--deepspeed="):
                return True
            if word == "--deepspeed" and following is not None and following.endswith("json"):
                return True
    return any("transformers" in c.alternatives for c in job.about("training_framework", scope))
