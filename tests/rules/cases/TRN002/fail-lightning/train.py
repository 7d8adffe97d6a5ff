import lightning as L

trainer = L.Trainer(devices=4)
trainer.fit(model)
if trainer.is_global_zero:
    trainer.save_checkpoint("last.ckpt")
