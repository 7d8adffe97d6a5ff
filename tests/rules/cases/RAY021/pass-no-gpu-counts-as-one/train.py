import ray
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

ray.init()
trainer = TorchTrainer(
    loop,
    scaling_config=ScalingConfig(num_workers=4, use_gpu=True, resources_per_worker={"CPU": 4, "GPU": 0}),
)
trainer.fit()
