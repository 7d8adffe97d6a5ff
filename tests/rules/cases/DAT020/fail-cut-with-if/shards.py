class Shard:
    def __init__(self, n, world_size, rank):
        per_rank = (n + world_size - 1) // world_size
        self.low = rank * per_rank
        self.high = self.low + per_rank
        if self.high > n:
            self.high = n
