import os

queue = os.environ["SLURM_OUR_SITES_QUEUE"]
