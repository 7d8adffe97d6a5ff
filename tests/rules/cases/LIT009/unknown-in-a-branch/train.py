import os

import pytorch_lightning as pl
from model import Model

trainer = pl.Trainer(accelerator="gpu", devices=4, num_nodes=1 if os.environ.get("ONE") else 2, strategy="ddp")
trainer.fit(Model())
