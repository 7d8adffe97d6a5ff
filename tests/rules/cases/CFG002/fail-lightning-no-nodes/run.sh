pip install -r requirements.txt
srun python train.py
