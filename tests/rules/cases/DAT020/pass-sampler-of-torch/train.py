from torch.utils.data.distributed import DistributedSampler

sampler = DistributedSampler(dataset)
