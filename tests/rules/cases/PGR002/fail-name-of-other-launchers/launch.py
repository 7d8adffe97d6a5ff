import os

rank = int(os.getenv("SLURM_LOCAL_RANK", "0"))
