"""Where batch sizes are said: in DeepSpeed's configuration, and to the trainer that is started with it."""

from __future__ import annotations

import itertools

from preflight.job import Claim, Job, Launch, Relation, Scope, strongest

#: The quantities whose product is checked, and below them the configuration's own names.
BATCH = ("train_batch_size", "micro_batch_size_per_gpu", "gradient_accumulation_steps")
KEYS = {
    "train_batch_size": "train_batch_size",
    "micro_batch_size_per_gpu": "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
}


def configured(job: Job, quantity: str, scope: Scope) -> tuple[Claim, ...]:
    """What DeepSpeed's configuration says of a quantity in `scope`."""
    return strongest(c for c in job.about(quantity, scope) if c.source == "deepspeed")


def given_to_trainer(job: Job, quantity: str, scope: Scope) -> tuple[Claim, ...]:
    """What the program is told by its arguments, or its script passes to `TrainingArguments`."""
    return strongest(
        c
        for c in job.about(quantity, scope)
        if c.source in ("arguments", "trainer", "python") and c.relation is Relation.SETS and not _is_option_default(c)
    )


def _is_option_default(claim: Claim) -> bool:
    return claim.source == "python" and claim.spelling.startswith("--")


def uses_hugging_face(job: Job, launch: Launch | None, scope: Scope) -> bool:
    """Whether the configuration goes through Hugging Face's trainer (`--deepspeed FILE`, `TrainingArguments`)."""
    if launch is not None:
        words = launch.arguments
        for word, following in itertools.zip_longest(words, words[1:]):
            if word is not None and word.startswith("--deepspeed="):
                return True
            if word == "--deepspeed" and following is not None and following.endswith("json"):
                return True
    return any("transformers" in c.alternatives for c in job.about("training_framework", scope))
