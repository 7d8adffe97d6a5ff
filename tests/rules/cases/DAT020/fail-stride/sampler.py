from torch.utils.data import Sampler


class RankSampler(Sampler):
    def __init__(self, data, rank, world_size):
        self.data, self.rank, self.world_size = data, rank, world_size

    def __iter__(self):
        return iter(range(self.rank, len(self.data), self.world_size))
