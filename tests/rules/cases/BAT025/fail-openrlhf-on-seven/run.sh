deepspeed --include localhost:0,1,2,3,4,5,6 --module openrlhf.cli.train_sft --train_batch_size 256 --micro_train_batch_size 2
