import lightning as L

fabric = L.Fabric(devices=4, strategy="fsdp", precision="bf16-true")
