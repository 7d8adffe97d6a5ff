srun python train.py model=huge
