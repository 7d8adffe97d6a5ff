#!/bin/bash
mpirun -np 16 --hostfile hostfile ./all_reduce_perf -g 1
