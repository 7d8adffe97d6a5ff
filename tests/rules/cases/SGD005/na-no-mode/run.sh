#!/bin/bash
fleetrun --server_num=1 --worker_num=1 train.py
