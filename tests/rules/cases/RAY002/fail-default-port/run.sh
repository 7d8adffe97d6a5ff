#!/bin/bash
ray start --head
ssh w1 ray start --address=h1:6380
