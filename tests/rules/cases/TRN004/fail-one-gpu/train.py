import os
import sys
import torch

gpu = sys.argv[1]
os.environ["CUDA_VISIBLE_DEVICES"] = str(gpu)
torch.cuda.set_device(int(gpu))
