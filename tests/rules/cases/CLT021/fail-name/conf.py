HOSTS = [
    "root@192.168.100.17",
    "root@192.168.100.18",
]
ROOT_DIR = "paddle_job"
PADDLE_NIC = "eth0"
PADDLE_PORT = 7164
PADDLE_PORTS_NUM = 2
PADDLE_PORTS_NUM_FOR_SPARSE = 2
LD_LIBRARY_PATH = "/usr/local/cuda/lib64"
