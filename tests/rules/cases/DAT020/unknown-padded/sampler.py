import math


class Shares:
    def __init__(self, rank, size, indices):
        per = math.ceil(len(indices) / size)
        indices += indices[: per * size - len(indices)]  # padding
        self.indices = indices[rank * per : min((rank + 1) * per, len(indices))]
