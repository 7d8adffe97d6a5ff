horovodrun -np 8 --min-np 4 --max-np 12 --host-discovery-script ./discover.sh python train.py
