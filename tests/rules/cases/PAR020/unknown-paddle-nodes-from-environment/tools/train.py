import paddle
from ppfleetx.utils import config
