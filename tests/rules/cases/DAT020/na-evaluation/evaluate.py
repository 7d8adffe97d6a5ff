import math

def shares(rank, size, n):
    per = math.ceil(n / size)
    return range(rank * per, min((rank + 1) * per, n))
