import pytorch_lightning as pl
from pytorch_lightning.strategies import DeepSpeedStrategy

trainer = pl.Trainer(devices=8, strategy=DeepSpeedStrategy(config="ds.json"))
