import os
import torch

gpus = [int(each) for each in os.environ["CUDA_VISIBLE_DEVICES"].split(",")]
torch.cuda.set_device(gpus[int(os.environ["LOCAL_RANK"])])
