import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class Learner:
    def count(self):
        return self.strategy.all_reduce(self.step, op="sum")

    def run(self):
        early_stop = False
        for batch in self.loader:
            if early_stop:
                break
            self.model(batch).sum().backward()
            dist.barrier()
            if self.count() > 100:
                early_stop = True


dist.init_process_group("nccl")
learner = Learner()
learner.model = DDP(net)
learner.run()
