import os
import torch

os.environ["CUDA_VISIBLE_DEVICES"] = "2,3"
net = net.to("cuda:2")
