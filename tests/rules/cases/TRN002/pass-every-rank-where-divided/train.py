from accelerate import Accelerator, DistributedType

accelerator = Accelerator()
for epoch in range(3):
    if accelerator.distributed_type == DistributedType.FSDP or accelerator.is_main_process:
        accelerator.save_state("state")
