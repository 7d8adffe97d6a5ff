"""Lightning: the arguments of `Trainer(...)` and `Fabric(...)` in a script, and the trainer of LightningCLI's YAML."""

from __future__ import annotations

from typing import Any

from tools.oracle.cases import Case
from tools.oracle.documents import yaml_text
from tools.oracle.frameworks.base import Framework, Seed

_VERSION = "2.6.6"
_REQUIREMENTS = f"lightning[pytorch-extra]=={_VERSION}\ntorch==2.13.0\n"
_RUN = "#!/bin/bash\npip install -r requirements.txt\n"
_CLI = """\
from lightning.pytorch.cli import LightningCLI

from project import DataModule, Model

if __name__ == "__main__":
    LightningCLI(Model, DataModule)
"""
_FIT = """\
model, data = build()
trainer.fit(model, data)
"""
_SETUP = """\
model, optimizer = fabric.setup(*build())
train(fabric, model, optimizer)
"""


def _render(form: str, settings: dict[str, Any]) -> Case:
    if form == "cli":
        text, lines = yaml_text(settings)
        files = {
            "train.py": _CLI,
            "config.yaml": text,
            "requirements.txt": _REQUIREMENTS,
            "run.sh": f"{_RUN}srun python train.py fit --config config.yaml\n",
        }
        return Case("lightning", form, files, ("fit", "--config", "config.yaml"), lines={"config.yaml": lines})
    name, variable = ("Fabric", "fabric") if form == "fabric" else ("Trainer", "trainer")
    given = {key: value for key, value in settings.items() if key.isidentifier()}
    rows = ["import lightning as L", "", "from project import build, train", "", f"{variable} = L.{name}("]
    places = {key: len(rows) + number for number, key in enumerate(given, start=1)}
    rows += [f"    {key}={value!r}," for key, value in given.items()]
    rows += [")", *(_SETUP if form == "fabric" else _FIT).splitlines(), ""]
    files = {
        "train.py": "\n".join(rows),
        "requirements.txt": _REQUIREMENTS,
        "run.sh": f"{_RUN}srun python train.py\n",
    }
    return Case("lightning", form, files, lines={"train.py": places})


_DDP: dict[str, Any] = {
    "accelerator": "gpu",
    "devices": 8,
    "num_nodes": 4,
    "strategy": "ddp",
    "precision": "bf16-mixed",
    "max_epochs": 10,
    "gradient_clip_val": 1.0,
    "accumulate_grad_batches": 4,
    "log_every_n_steps": 10,
    "val_check_interval": 0.25,
}
_FSDP = {
    "accelerator": "cuda",
    "devices": 8,
    "num_nodes": 2,
    "strategy": "fsdp",
    "precision": "bf16-true",
    "max_steps": 20000,
    "limit_val_batches": 50,
    "num_sanity_val_steps": 0,
    "enable_checkpointing": True,
    "check_val_every_n_epoch": None,
    "val_check_interval": 500,
}
_DEEPSPEED = {
    "accelerator": "gpu",
    "devices": "auto",
    "num_nodes": 2,
    "strategy": "deepspeed_stage_2",
    "precision": "16-mixed",
    "max_epochs": -1,
    "max_time": "00:12:00:00",
    "gradient_clip_val": 0.5,
    "gradient_clip_algorithm": "norm",
    "sync_batchnorm": True,
    "deterministic": "warn",
    "benchmark": False,
    "default_root_dir": "logs",
}
_BARE = {
    "accelerator": "gpu",
    "devices": [0, 1, 2, 3],
    "strategy": "ddp_find_unused_parameters_true",
    "precision": 32,
    "max_steps": 100,
    "barebones": True,
    "use_distributed_sampler": False,
    "inference_mode": True,
}
_DEBUGGED = {
    "accelerator": "auto",
    "devices": 4,
    "precision": "32-true",
    "fast_dev_run": False,
    "overfit_batches": 0.1,
    "limit_train_batches": 1.0,
    "limit_test_batches": 100,
    "profiler": "simple",
    "detect_anomaly": True,
    "logger": True,
    "enable_progress_bar": True,
    "reload_dataloaders_every_n_epochs": 1,
}
_FABRIC = {"accelerator": "cuda", "devices": 8, "num_nodes": 2, "strategy": "fsdp", "precision": "bf16-true"}
_FABRIC_AUTO = {"accelerator": "auto", "devices": "auto", "strategy": "auto", "precision": "16-mixed"}


def _cli(trainer: dict[str, Any]) -> dict[str, Any]:
    return {"seed_everything": 42, "trainer": trainer}


_CONNECTED: dict[str, tuple[Any, ...]] = {
    "accelerator": ("gpu", "cuda", "auto", "cpu", "gpus", "GPU", "ddp", "nvidia", None),
    "devices": (1, 4, 8, 0, -1, "8", "0,1", "-1", "auto", [0, 1], [], "all", [0, 0], 2.0, "0"),
    "num_nodes": (1, 2, 0, -1, "2", 2.0, None),
    "strategy": (
        *("ddp", "DDP", "ddp_spawn", "fsdp", "fsdp_cpu_offload", "deepspeed", "deepspeed_stage_3", "auto", "dp"),
        *("ddp2", "ddp_sharded", "horovod", "deepspeed_stage3", "fsdp_native", "ddp_find_unused_parameters_false"),
        *("deepspeed_stage_3_offload", "ddp_notebook", "fsdp2", "model_parallel", None),
    ),
    "precision": (
        *("16", "bf16", 16, 32, 64, "16-mixed", "bf16-mixed", "bf16-true", "16-true", "64-true", "fp16", "float16"),
        *("bfloat16", "fp32", "fp8", "mixed", 8, "bf16_mixed", "transformer-engine", None),
    ),
    "plugins": ([], None),
    "gpus": (8, -1),
}
_TRAINER: dict[str, tuple[Any, ...]] = {
    **_CONNECTED,
    "max_epochs": (1, -1, 0, -2, None),
    "min_epochs": (1, None),
    "max_steps": (-1, 1000, -2, 0),
    "min_steps": (10,),
    "max_time": ("00:01:00:00", "1 day", "01:00", {"days": 1, "hours": 5}, {"day": 1}, 3600),
    "limit_train_batches": (0.5, 10, 1.5, -1, 2.0, "half", True),
    "limit_val_batches": (0, 0.0, 5, 1.5, -0.1, 1.0),
    "limit_test_batches": (0.1, 2.5),
    "limit_predict_batches": (1.0, -1),
    "overfit_batches": (0.0, 10, 1.5, -1, "all"),
    "fast_dev_run": (True, 5, -1, 0),
    "val_check_interval": (0.5, 100, 1.5, 2.0, -1, "00:00:15:00", "15m", None),
    "check_val_every_n_epoch": (1, 5, None, 0.5, "1"),
    "num_sanity_val_steps": (0, 2, -1),
    "log_every_n_steps": (0, 1, 50),
    "enable_checkpointing": (True, False),
    "enable_progress_bar": (True, False),
    "enable_model_summary": (True, False),
    "accumulate_grad_batches": (1, 2, 8, 0, {4: 2}),
    "gradient_clip_val": (0, 0.5, "1.0", None, True),
    "gradient_clip_algorithm": ("norm", "value", "Norm", "l2", "clip_norm", None),
    "deterministic": (True, False, "warn"),
    "benchmark": (True, False),
    "inference_mode": (True, False),
    "use_distributed_sampler": (True, False),
    "profiler": ("simple", "advanced", "pytorch", "torch", "Simple", "nsys", None),
    "detect_anomaly": (True, False),
    "barebones": (True, False),
    "sync_batchnorm": (True, False),
    "reload_dataloaders_every_n_epochs": (0, 1, -1, 1.0),
    "logger": (True, False, None),
    "enable_autolog_hparams": (True, False),
    # Of earlier releases, and of other frameworks.
    "num_processes": (2,),
    "tpu_cores": (8,),
    "auto_select_gpus": (True,),
    "replace_sampler_ddp": (False,),
    "amp_backend": ("native",),
    "resume_from_checkpoint": ("last.ckpt",),
    "auto_lr_find": (True,),
    "weights_save_path": ("w",),
    "track_grad_norm": (2,),
    "checkpoint_callback": (True,),
    "progress_bar_refresh_rate": (10,),
    "epochs": (3,),
    "gradient_accumulation_steps": (4,),
    "model_registry": ("me/model",),
}
_OF_FABRIC = {**_CONNECTED, "callbacks": ([], None), "loggers": (None, []), "logger": (True,), "max_epochs": (1,)}
FRAMEWORK = Framework(
    name="lightning",
    distribution="lightning",
    version=_VERSION,
    requirements=(
        *("jsonargparse==4.53.0", "docstring-parser==0.18.0", "typeshed-client==2.15.0", "packaging", "tqdm"),
        *("fsspec[http]", "rich", "numpy", "lightning-utilities==0.15.3"),
    ),
    alone=(f"lightning=={_VERSION}", "torchmetrics==1.9.0"),
    validator="lightning_validator.py",
    seeds=(
        *(Seed("trainer", settings) for settings in (_DDP, _FSDP, _DEEPSPEED, _BARE, _DEBUGGED)),
        *(Seed("fabric", settings) for settings in (_FABRIC, _FABRIC_AUTO)),
        *(Seed("cli", _cli(settings)) for settings in (_DDP, _FSDP, _DEEPSPEED)),
    ),
    space={
        "trainer": _TRAINER,
        "fabric": _OF_FABRIC,
        "cli": {f"trainer.{key}": values for key, values in _TRAINER.items()},
    },
    render=_render,
    keep=frozenset({"seed_everything", "trainer"}),
)
