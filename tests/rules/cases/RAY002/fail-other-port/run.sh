#!/bin/bash
ray start --head --port=6379
ssh w1 ray start --address=h1:6380
