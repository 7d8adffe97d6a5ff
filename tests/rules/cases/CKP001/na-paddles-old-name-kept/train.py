import paddle
from paddle.distributed import ParallelEnv


class Trainer:
    def __init__(self):
        self.env = ParallelEnv()
        self.local_rank = self.env.local_rank

    def save(self, model):
        if self.local_rank == 0:
            paddle.save(model.state_dict(), "out/model.pdparams")


paddle.distributed.init_parallel_env()
Trainer().save(model)
