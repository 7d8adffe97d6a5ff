import torch.distributed as dist

def cleanup():
    dist.destroy_process_group()

def main():
    dist.init_process_group("nccl")
    try:
        train()
    except Exception as error:
        log(error)
        cleanup()

main()
