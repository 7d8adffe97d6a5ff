if [ -n "$FAST" ]; then
  K=trainer.num_nodes
fi
srun python train.py $K=4 "$@"
