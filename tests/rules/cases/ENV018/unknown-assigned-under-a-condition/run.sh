if [ "$1" = multi ]; then
  NPROC_PER_NODE=8
fi
swift sft --model Qwen/Qwen2.5-7B --dataset data.jsonl
