docker run -it --rm --net=host --runtime nvidia example/tf:20.01 sh
mpirun -np 4 python train.py
