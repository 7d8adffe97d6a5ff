ray job submit -- python tune.py
