import pytorch_lightning as pl
from model import Model

trainer = pl.Trainer(accelerator="gpu", devices=8, num_nodes=1, strategy="ddp")
trainer.fit(Model())
