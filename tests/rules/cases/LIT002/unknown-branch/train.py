import sys
import pytorch_lightning as pl
from pytorch_lightning.strategies import DeepSpeedStrategy

if len(sys.argv) > 2:
    trainer = pl.Trainer(devices=8, strategy=DeepSpeedStrategy(config="ds.json"))
