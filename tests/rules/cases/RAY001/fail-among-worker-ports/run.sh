#!/bin/bash
ray start --head --port=10005
