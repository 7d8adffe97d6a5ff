def share(samples, rank, world_size):
    per_rank = -(-len(samples) // world_size)
    first = rank * per_rank
    return samples[first : min(first + per_rank, len(samples))]
