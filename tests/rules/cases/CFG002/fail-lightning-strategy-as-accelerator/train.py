from pytorch_lightning import Trainer

trainer = Trainer(gpus=4, accelerator="ddp")
