import torch
from net import Net

model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(Net())
