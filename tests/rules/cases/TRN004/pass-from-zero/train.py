import os
import torch

os.environ["CUDA_VISIBLE_DEVICES"] = "0,1,2,3"
gpus = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
torch.cuda.set_device(int(gpus[local_rank]))
