import lightning as L

from project import strategy, train

fabric = L.Fabric(accelerator="cuda", devices=8, strategy=strategy(), precision="64-true")
fabric.launch(train)
