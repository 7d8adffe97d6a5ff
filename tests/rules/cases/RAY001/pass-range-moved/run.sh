#!/bin/bash
ray start --head --port=10005 --min-worker-port=20000 --max-worker-port=20100
