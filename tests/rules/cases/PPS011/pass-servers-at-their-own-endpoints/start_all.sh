#!/bin/bash
bash server.sh 8000 &
bash server.sh 8001 &
wait
