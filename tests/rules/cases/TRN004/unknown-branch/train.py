import os
import sys
import torch

chosen = sys.argv[1]
ids = chosen.split(",")
if mask:
    os.environ["CUDA_VISIBLE_DEVICES"] = chosen
torch.cuda.set_device(int(ids[int(os.environ["LOCAL_RANK"])]))
