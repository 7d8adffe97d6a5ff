import paddle.v2 as paddle
paddle.init(use_gpu=False, trainer_count=1, port=7164, ports_num=1, ports_num_for_sparse=1, num_gradient_servers=2, trainer_id=0, pservers="10.0.0.1,10.0.0.2")
word = paddle.layer.data("word", paddle.data_type.integer_value(1000000))
emb = paddle.layer.embedding(input=word, size=128, param_attr=paddle.attr.Param(sparse_update=True))
cost = paddle.layer.classification_cost(paddle.layer.fc(emb, size=2), paddle.layer.data("label", paddle.data_type.integer_value(2)))
params = paddle.parameters.create(cost)
trainer = paddle.trainer.SGD(cost=cost, parameters=params, update_equation=paddle.optimizer.Adam(), is_local=False)
trainer.train(paddle.batch(paddle.dataset.imdb.train({}), 64), num_passes=10)
