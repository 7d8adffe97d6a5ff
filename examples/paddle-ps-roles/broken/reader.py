import paddle.distributed.fleet as fleet


class Reader(fleet.MultiSlotDataGenerator):
    def generate_sample(self, line):
        def sample():
            label, *ids = map(int, line.split())
            yield [("ids", ids), ("label", [label])]

        return sample


Reader().run_from_stdin()
