import datetime
import torch.distributed as dist
dist.init_process_group('nccl', timeout=datetime.timedelta(hours=2))
if dist.get_rank() == 0:
    download(url)
dist.barrier()
