#!/bin/bash
ray start --head --port=6379 --node-manager-port=6380 --min-worker-port=20000 --max-worker-port=20100
