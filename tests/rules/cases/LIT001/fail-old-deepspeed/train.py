import lightning as L

fabric = L.Fabric(devices=4, strategy="deepspeed", precision="bf16-true")
