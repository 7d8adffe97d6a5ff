"""Prints the values that DeepSpeed's models accept for each key: kind, bounds, choices, and the key that replaces
it.
"""

import json
import sys

from deepspeed.comm.config import CommsLoggerConfig
from deepspeed.compile.config import CompileConfig
from deepspeed.monitor.config import CometConfig, CSVConfig, TensorBoardConfig, WandbConfig
from deepspeed.runtime import config as runtime
from deepspeed.runtime.tensor_parallel.config import TPTrainingConfig
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from deepspeed.utils.config import DeepSpeedThroughputTimerConfig
from model_rows import rows

try:
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
except ImportError:
    DeepSpeedBF16Config = DeepSpeedFP16Config = None

SECTIONS = {
    "zero_optimization": DeepSpeedZeroConfig,
    "fp16": DeepSpeedFP16Config,
    "bf16": DeepSpeedBF16Config,
    "bfloat16": DeepSpeedBF16Config,
    "comms_logger": CommsLoggerConfig,
    "compile": CompileConfig,
    "tensorboard": TensorBoardConfig,
    "wandb": WandbConfig,
    "comet": CometConfig,
    "csv_monitor": CSVConfig,
    "hybrid_engine": runtime.HybridEngineConfig,
    "tensor_parallel": TPTrainingConfig,
    "timers.throughput": DeepSpeedThroughputTimerConfig,
}
#: Sections that are no models: they take any key.
OPEN = (
    "activation_checkpointing",
    "flops_profiler",
    "optimizer",
    "scheduler",
    "aio",
    "checkpoint",
    "data_types",
    "data_efficiency",
    "autotuning",
    "torch_autocast",
    "timers",
)


def main():
    made = []
    for section, model in SECTIONS.items():
        if model is not None:
            made.extend(rows(section, model))
    made.extend({"key": name, "kind": "section", "closed": False} for name in OPEN)
    json.dump(made, sys.stdout)


main()
