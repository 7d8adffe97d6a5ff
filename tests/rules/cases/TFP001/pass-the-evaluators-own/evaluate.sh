#!/bin/bash
export TF_CONFIG="{\"cluster\": {\"chief\": [\"localhost:7001\"], \"evaluator\": [\"localhost:7002\"]}, \"task\": {\"type\": \"evaluator\", \"index\": 0}}"
python evaluate.py
