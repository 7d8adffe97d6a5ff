import lightning as L

fabric = L.Fabric(devices=4, strategy="deepspeed_stage_3", precision="bf16-mixed")
