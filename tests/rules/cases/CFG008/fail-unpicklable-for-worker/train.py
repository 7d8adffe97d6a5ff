import torch.multiprocessing as mp
from data import dataset
from torch.utils.data import DataLoader

mp.set_start_method("spawn")
loader = DataLoader(dataset, num_workers=2, collate_fn=lambda batch: batch)
