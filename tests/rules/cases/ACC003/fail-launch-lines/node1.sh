accelerate launch --num_machines 2 --num_processes 8 --machine_rank 1 --main_process_ip 10.0.0.9 --main_process_port 29500 train.py
