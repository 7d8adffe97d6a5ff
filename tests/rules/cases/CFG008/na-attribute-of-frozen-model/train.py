import torch
from accelerate import Accelerator
from nets import unet, vae

accelerator = Accelerator()
vae.requires_grad_(False)
for p in vae.parameters():
    p.requires_grad = False
print(sum(p.numel() for p in vae.parameters()))
optimizer = torch.optim.AdamW(unet.parameters())
unet, vae, optimizer = accelerator.prepare(unet, vae, optimizer)
print(vae.config)
