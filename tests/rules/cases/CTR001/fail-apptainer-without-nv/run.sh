apptainer exec -B /data cuda12.sif python train.py
