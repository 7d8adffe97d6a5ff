import os
import sys
import torch

chosen = sys.argv[1]
ids = [int(each) for each in chosen.split(",")]
os.environ["CUDA_VISIBLE_DEVICES"] = chosen
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(ids[rank])
