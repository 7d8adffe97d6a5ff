import pytorch_lightning as pl

from model import Net, loader

trainer = pl.Trainer(gpus=2, strategy="ddp", max_epochs=3)
trainer.fit(Net(), loader)
