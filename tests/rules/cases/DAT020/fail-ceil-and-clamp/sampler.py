import math


class Shares:
    def __init__(self, rank, size, n):
        per = int(math.ceil(n / size))
        start = rank * per
        end = min((rank + 1) * per - 1, n - 1)
        self.indices = list(range(start, end + 1))
