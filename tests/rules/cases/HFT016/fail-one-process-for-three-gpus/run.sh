CUDA_VISIBLE_DEVICES=0,1,2 swift sft --model Qwen/Qwen2.5-7B --dataset data.jsonl --deepspeed zero3
