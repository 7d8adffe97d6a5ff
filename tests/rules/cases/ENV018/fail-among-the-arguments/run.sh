swift sft NPROC_PER_NODE=8 --model Qwen/Qwen2.5-7B --dataset data.jsonl
