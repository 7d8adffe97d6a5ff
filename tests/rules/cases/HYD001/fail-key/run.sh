srun python train.py trainer.num_node=4
