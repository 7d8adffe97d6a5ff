import pytorch_lightning as pl
from net import Lit

pl.Trainer(accelerator="gpu", devices=2, strategy="ddp_spawn").fit(Lit())
