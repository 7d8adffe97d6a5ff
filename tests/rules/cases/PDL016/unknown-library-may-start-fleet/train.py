import paddle
from paddle.distributed import fleet
from ppfleetx.utils import env

env.init_dist_env(config)
model = fleet.distributed_model(paddle.nn.Linear(2, 2))
