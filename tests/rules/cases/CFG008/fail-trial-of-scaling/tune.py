from ray import tune
from ray.train import ScalingConfig


def fit(config):
    print(config)


tune.Tuner(tune.with_resources(fit, resources=ScalingConfig(num_workers=1, use_gpu=True))).fit()
