#!/bin/bash
bash run.sh 0
