NPROC_PER_NODE=8
swift sft --model Qwen/Qwen2.5-7B --dataset data.jsonl
