import os
import torch

os.environ["CUDA_VISIBLE_DEVICES"] = "4,5,6,7"
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
