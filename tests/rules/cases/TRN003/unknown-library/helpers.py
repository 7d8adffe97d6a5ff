import torch.distributed as dist

def guarded(main):
    try:
        main()
    finally:
        dist.destroy_process_group()
