import torch.distributed.rpc as rpc

rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
