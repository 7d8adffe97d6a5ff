import os

rank = int(os.environ["OMPI_COMM_WORLD_LOCALRANK"])
