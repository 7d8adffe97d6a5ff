#!/bin/bash
CUDA_VISIBLE_DEVICES=0,1,2,3 NPROC_PER_NODE=2 swift sft --model Qwen/Qwen2.5-7B-Instruct --dataset data.jsonl
