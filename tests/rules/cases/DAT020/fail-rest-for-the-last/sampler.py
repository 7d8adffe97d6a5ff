class ShareSampler:
    def __init__(self, rank, world_size, dataset):
        per = len(dataset) // world_size
        self.start = rank * per
        self.end = len(dataset) if rank == world_size - 1 else self.start + per
