from accelerate import Accelerator

accelerator = Accelerator()
if accelerator.is_main_process:
    state = accelerator.get_state_dict(None)
