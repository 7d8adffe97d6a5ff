import paddle.fluid as fluid

print(fluid)
