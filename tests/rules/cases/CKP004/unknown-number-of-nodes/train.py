import torch
import torch.distributed as dist

dist.init_process_group("nccl")
if dist.get_rank() == 0:
    torch.save(model.state_dict(), "/tmp/ckpt.pt")
dist.barrier()
model.load_state_dict(torch.load("/tmp/ckpt.pt"))
