import torch
from accelerate import Accelerator
from nets import unet, vae

accelerator = Accelerator()
optimizer = torch.optim.AdamW(unet.parameters())
unet, vae, optimizer = accelerator.prepare(unet, vae, optimizer)
print(unet.config)
