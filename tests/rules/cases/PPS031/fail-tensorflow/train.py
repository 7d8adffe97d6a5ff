import tensorflow as tf
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    server = tf.distribute.Server(resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc")
    server.join()
strategy = tf.distribute.ParameterServerStrategy(resolver)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Embedding(10000000, 64), tf.keras.layers.Flatten(), tf.keras.layers.Dense(1)])
    model.compile("adam", "mse")
model.fit(tf.keras.utils.experimental.DatasetCreator(lambda c: tf.data.Dataset.from_tensors(([1], [1.])).repeat()), epochs=1, steps_per_epoch=10, callbacks=[tf.keras.callbacks.ModelCheckpoint("gs://bucket/ckpt")])
