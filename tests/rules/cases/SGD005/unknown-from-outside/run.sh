#!/bin/bash
fleetrun --server_num=1 --worker_num=$N train.py
