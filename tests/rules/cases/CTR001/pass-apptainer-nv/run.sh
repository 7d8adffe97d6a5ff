apptainer exec --nv cuda12.sif python train.py
