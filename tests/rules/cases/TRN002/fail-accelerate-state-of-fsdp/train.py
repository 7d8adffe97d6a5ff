from accelerate import Accelerator

accelerator = Accelerator()
for epoch in range(3):
    if accelerator.is_main_process:
        accelerator.save_state("state")
