import sys

from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

scaling = ScalingConfig(num_workers=int(sys.argv[1]), use_gpu=True, label_selector=[{"zone": "a"}])
TorchTrainer(print, scaling_config=scaling).fit()
