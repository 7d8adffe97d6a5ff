srun -N1 -n1 -w n0 --export=ALL,NODE_RANK=0 bash run.sh &
srun -N1 -n1 -w n1 --export=ALL,NODE_RANK=0 bash run.sh &
wait
