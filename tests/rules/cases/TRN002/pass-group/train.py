import torch.distributed as dist

dist.init_process_group("nccl")
group = dist.new_group([0])
if dist.get_rank() == 0:
    dist.all_reduce(x, group=group)
