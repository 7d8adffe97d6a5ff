HOSTS = open("hosts").read().split()
ROOT_DIR = "/home/paddle"
PADDLE_NIC = "eth0"
PADDLE_PORT = 7164
PADDLE_PORTS_NUM = 2
PADDLE_PORTS_NUM_FOR_SPARSE = 2
