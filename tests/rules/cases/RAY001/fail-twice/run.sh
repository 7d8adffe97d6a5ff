#!/bin/bash
ray start --head --port=6379 --node-manager-port=6380 --object-manager-port=6380
