srun python train.py fit --config config.yaml
