"""YAML of PaddleFleetX (Fleet's suite of large models): batch sizes, parallel degrees, the model's shape.

Source of the keys: ppfleetx/utils/config.py (process_dist_config, process_global_configs) and configs/nlp/gpt of
PaddleFleetX 2.4. `_base_` names the file that this one extends; `-o Distributed.mp_degree=2` overrides both.
"""

from __future__ import annotations

import re

from preflight.sources.configs.frameworks.table import (
    FORMATS,
    Framework,
    Key,
    as_count,
    as_flag,
    as_float,
    as_path,
    map_alternatives,
    word_of,
)

PADDLE_FLEET_X = Framework(
    name="paddlefleetx",
    suffixes=(".yaml", ".yml"),
    signs=(
        re.compile(r"^(?:Global|Distributed):", re.MULTILINE),
        re.compile(
            r"^[ \t]+(?:mp_degree|dp_degree|pp_degree|sharding_degree|local_batch_size|global_batch_size):",
            re.MULTILINE,
        ),
    ),
    keys=(
        Key("Global.global_batch_size", "train_batch_size", as_count),
        Key("Global.micro_batch_size", "micro_batch_size_per_gpu", as_count),
        Key("Distributed.dp_degree", "data_parallel_size", as_count),
        Key("Distributed.mp_degree", "tensor_parallel_size", as_count),
        Key("Distributed.pp_degree", "pipeline_parallel_size", as_count),
        Key("Distributed.sharding.sharding_degree", "sharding_degree", as_count),
        Key("Model.num_layers", "num_layers", as_count),
        Key("Model.hidden_size", "hidden_size", as_count),
        Key("Model.ffn_hidden_size", "ffn_hidden_size", as_count),
        Key("Model.num_attention_heads", "attention_heads", as_count),
        Key("Model.vocab_size", "vocabulary_size", as_count),
        Key("Model.num_experts", "num_experts", as_count),
        Key("Model.sequence_parallel", "sequence_parallel", as_flag),
        Key("Model.use_recompute", "recompute", map_alternatives(lambda item: "full" if item is True else "none")),
        Key("Data.Train.dataset.max_seq_len", "sequence_length", as_count),
        Key("Data.Train.dataset.input_dir", "data_path", as_path),
        Key("Data.Train.loader.num_workers", "dataloader_workers"),
        Key("Engine.max_steps", "train_steps", as_count),
        Key("Engine.mix_precision.dtype", "mixed_precision", word_of(FORMATS, "number format")),
        Key("Engine.save_load.save_steps", "save_interval", as_count),
        Key("Engine.save_load.output_dir", "checkpoint_path", as_path),
        Key("Engine.save_load.ckpt_dir", "resume_path", as_path),
        Key("Optimizer.lr.max_lr", "learning_rate", as_float),
        Key("Optimizer.weight_decay", "weight_decay", as_float),
        Key("Optimizer.grad_clip.clip_norm", "gradient_clipping", as_float),
    ),
    base="_base_",
    settings=True,
)

#: PaddleDetection 2.8 (ppdet/core/workspace.py, configs/): pieces that name each other in `_BASE_`; `batch_size` is one
#: GPU's.
PADDLE_DETECTION = Framework(
    name="paddledetection",
    suffixes=(".yaml", ".yml"),
    signs=(
        re.compile(
            r"^(?:_BASE_|TrainReader|architecture|snapshot_epoch|TrainDataset|LearningRate|worker_num):", re.MULTILINE
        ),
        re.compile(
            r"^(?:TrainReader|EvalReader|TestReader|OptimizerBuilder|TrainDataset|snapshot_epoch|pretrain_weights"
            r"|log_iter|use_gpu):",
            re.MULTILINE,
        ),
    ),
    keys=(
        Key("TrainReader.batch_size", "micro_batch_size_per_gpu", as_count),
        Key("worker_num", "dataloader_workers"),
        Key("LearningRate.base_lr", "learning_rate", as_float),
        Key("OptimizerBuilder.clip_grad_by_norm", "gradient_clipping", as_float),
        Key("TrainDataset.dataset_dir", "data_path", as_path),
        Key("save_dir", "checkpoint_path", as_path),
    ),
    base="_BASE_",
    settings=True,
)

#: PaddleClas 2.6 (ppcls/configs, docs of config): `sampler.batch_size` is one GPU's.
PADDLE_CLAS = Framework(
    name="paddleclas",
    suffixes=(".yaml", ".yml"),
    signs=(
        re.compile(r"^DataLoader:", re.MULTILINE),
        re.compile(r"^(?:Arch|Global|Loss):", re.MULTILINE),
        re.compile(r"^[ \t]+(?:sampler|loader|use_shared_memory|batch_size):", re.MULTILINE),
    ),
    keys=(
        Key("DataLoader.Train.sampler.batch_size", "micro_batch_size_per_gpu", as_count),
        Key("DataLoader.Train.batch_size", "micro_batch_size_per_gpu", as_count),
        Key("DataLoader.Train.loader.num_workers", "dataloader_workers"),
        Key("DataLoader.Train.num_workers", "dataloader_workers"),
        Key("DataLoader.Train.dataset.image_root", "data_path", as_path),
        Key("Optimizer.lr.learning_rate", "learning_rate", as_float),
        Key("Global.output_dir", "checkpoint_path", as_path),
        Key("Global.checkpoints", "resume_path", as_path),
    ),
)
