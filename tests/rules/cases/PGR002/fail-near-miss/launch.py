import os

nodes = int(os.environ["SLURM_JOB_NUMNODES"])
