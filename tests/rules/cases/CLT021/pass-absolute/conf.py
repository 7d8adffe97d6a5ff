HOSTS = ["root@10.0.0.1", "root@10.0.0.2"]
ROOT_DIR = "/home/paddle"
PADDLE_NIC = "eth0"
PADDLE_PORT = 7164
PADDLE_PORTS_NUM = 2
PADDLE_PORTS_NUM_FOR_SPARSE = 2
LD_LIBRARY_PATH = "/usr/local/cuda/lib64"
