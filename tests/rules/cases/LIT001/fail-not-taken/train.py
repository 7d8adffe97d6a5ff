import lightning.pytorch as pl
from lightning.pytorch.strategies import FSDPStrategy

trainer = pl.Trainer(strategy=FSDPStrategy(), precision="64-true")
