#!/bin/bash
fleetrun --servers=$SERVERS --workers=$WORKERS train.py
