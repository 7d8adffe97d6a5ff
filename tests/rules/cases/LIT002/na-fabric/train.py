import lightning as L
from lightning.fabric.strategies import DeepSpeedStrategy

f = L.Fabric(strategy=DeepSpeedStrategy(config="ds.json"))
