import sys

from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

scaling = ScalingConfig(num_workers=(8, 2), use_gpu=True)
TorchTrainer(print, scaling_config=scaling).fit()
