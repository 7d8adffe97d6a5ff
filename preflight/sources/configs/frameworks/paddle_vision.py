"""YAML of PaddleSeg: the batch of one GPU, iterations, learning rate.

Source of the keys: paddleseg/cvlibs/config.py and configs/ of PaddleSeg 2.10. `_base_` names the file that this one
extends; `--batch_size` and similar options override both.
"""

from __future__ import annotations

import re

from preflight.sources.configs.frameworks.table import Framework, Key, as_count, as_float, as_path

PADDLE_SEG = Framework(
    name="paddleseg",
    suffixes=(".yaml", ".yml"),
    signs=(
        re.compile(r"^(?:iters|_base_):", re.MULTILINE),
        re.compile(r"^(?:batch_size|train_dataset|val_dataset|lr_scheduler|loss|model):", re.MULTILINE),
        re.compile(r"^(?:model|optimizer|lr_scheduler|loss|val_dataset|train_dataset):", re.MULTILINE),
    ),
    others=(
        re.compile(
            r"^(?:apiVersion|trainer|hydra|defaults|Global|Distributed|TrainReader|trainer_args):", re.MULTILINE
        ),
        re.compile(r"![\w.:]+|_target_:"),
    ),
    keys=(
        Key("batch_size", "micro_batch_size_per_gpu", as_count),
        Key("iters", "train_steps", as_count),
        Key("lr_scheduler.learning_rate", "learning_rate", as_float),
        Key("optimizer.weight_decay", "weight_decay", as_float),
        Key("train_dataset.dataset_root", "data_path", as_path),
    ),
    programs=("paddleseg.tools.train",),
    base="_base_",
)
