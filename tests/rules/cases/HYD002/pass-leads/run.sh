srun python train.py +trainer.max_steps=10 model=large
