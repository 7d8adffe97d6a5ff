"""Composes and validates the configuration of verl's `main_ppo` as that program does before Ray starts.

The configuration of generation is made as well, as each worker makes it. Packages for computation are replaced by
stand-ins: neither Hydra nor the validator uses them.
"""

import contextlib
import copy
import io
import re
import shlex
import warnings

from stand_ins import stand_in

stand_in(
    *("ray", "datasets", "tensordict", "torchdata", "peft", "accelerate", "transformers", "PIL", "pandas"),
    *("codetiming", "torchvision", "cachetools"),
)
import omegaconf  # noqa: E402
import verl.workers.config.model as model  # noqa: E402
from hydra import compose, initialize_config_module  # noqa: E402
from verdict_lines import Refusal, main  # noqa: E402
from verl.trainer.ppo.utils import need_critic, need_reference_policy  # noqa: E402
from verl.utils.config import omega_conf_to_dataclass, validate_config  # noqa: E402

warnings.simplefilter("ignore")
# It loads the model.
model.HFModelConfig.__post_init__ = lambda self: None


def validate(case):
    """Raise what Hydra or the validator raises."""
    words = shlex.split(re.sub(r"\\\n\s*", " ", case["files"]["run.sh"].split("verl.trainer.main_ppo", 1)[1]))
    try:
        config = compose("ppo_trainer", words)
        validate_config(config, need_reference_policy(config), need_critic(config))
        omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    except Exception as error:
        if "vllm version" in str(error):
            # The node that is meant has vLLM, which is asked for the ranks of adapters that it takes.
            return
        # Hydra wraps what the constructor of a configuration raises.
        inner = error.__cause__ or error.__context__ or ""
        raise Refusal(f"{type(error).__name__}: {error} {inner}") from None


class Loader:
    """Caches verl's files, of which Hydra reads some thirty for each case."""

    def __init__(self):
        self.read, self.files = omegaconf.OmegaConf.load, {}

    def __call__(self, file):
        text = file.read()
        if text not in self.files:
            self.files[text] = self.read(io.StringIO(text))
        return copy.deepcopy(self.files[text])


if __name__ == "__main__":
    omegaconf.OmegaConf.load = Loader()
    with initialize_config_module("verl.trainer.config", version_base=None):
        main(validate, contextlib.nullcontext, same_here=True)
