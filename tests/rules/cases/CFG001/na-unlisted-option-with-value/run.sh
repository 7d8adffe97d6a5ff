torchrun --nproc_per_node 2 train.py --output_dir out --do_train=True --max_len 1024 --per_device_train_batch_size 4 --max_steps 100 --learning_rate 1e-4
