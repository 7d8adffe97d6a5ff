import os
import torch

os.environ["CUDA_VISIBLE_DEVICES"] = "4,5,6,7"
gpus = os.environ["CUDA_VISIBLE_DEVICES"].split(",")

def worker(local_rank):
    gpu = int(gpus[local_rank])
    torch.cuda.set_device(gpu)
