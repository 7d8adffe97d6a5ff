import numpy as np

class Images:
    def __init__(self, part): self.x = np.load(part + ".npy")
    def __len__(self): return len(self.x)
    def __getitem__(self, i): return self.x[i], 0

def loader(*a):
    yield from np.load("d.npy")
