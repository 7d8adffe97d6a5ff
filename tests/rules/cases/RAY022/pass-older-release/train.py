import sys

from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

scaling = ScalingConfig(num_workers=4, trainer_resources={"CPU": 1})
TorchTrainer(print, scaling_config=scaling).fit()
