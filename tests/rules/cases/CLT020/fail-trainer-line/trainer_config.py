from paddle.trainer_config_helpers import *
define_py_data_sources2(train_list="train.list", test_list=None, module="provider", obj="process")
settings(batch_size=128, learning_rate=1e-3, learning_method=AdamOptimizer())
word = data_layer(name="word", size=1000000)
emb = embedding_layer(input=word, size=128, param_attr=ParamAttr(sparse_update=True))
out = fc_layer(input=pooling_layer(input=emb, pooling_type=SumPooling()), size=2, act=SoftmaxActivation())
outputs(classification_cost(input=out, label=data_layer("label", 2)))
