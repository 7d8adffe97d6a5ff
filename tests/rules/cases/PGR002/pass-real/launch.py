import os

rank = int(os.environ["SLURM_PROCID"])
nodes = os.environ.get("SLURM_JOB_NUM_NODES")
