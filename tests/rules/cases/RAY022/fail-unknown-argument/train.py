import sys

from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

scaling = ScalingConfig(num_workers=4, gpus_per_worker=1)
TorchTrainer(print, scaling_config=scaling).fit()
