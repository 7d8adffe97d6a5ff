#!/bin/bash
ray start --address=$HEAD
