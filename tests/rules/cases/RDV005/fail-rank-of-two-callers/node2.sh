#!/bin/bash
bash run.sh 1
