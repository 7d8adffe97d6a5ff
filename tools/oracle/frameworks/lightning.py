"""Lightning: the arguments of `Trainer(...)` and `Fabric(...)` in a script, and the trainer of LightningCLI's YAML."""

from __future__ import annotations

from typing import Any

from tools.oracle.cases import Case
from tools.oracle.documents import yaml_text
from tools.oracle.frameworks.base import Framework, seeds, space

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
    files = {"train.py": "\n".join(rows), "requirements.txt": _REQUIREMENTS, "run.sh": f"{_RUN}srun python train.py\n"}
    return Case("lightning", form, files, lines={"train.py": places})


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
    seeds=seeds("lightning"),
    space=space("lightning"),
    render=_render,
    keep=frozenset({"seed_everything", "trainer"}),
)
