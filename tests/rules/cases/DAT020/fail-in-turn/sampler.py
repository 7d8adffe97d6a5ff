class RankSampler:
    def __init__(self, dataset, rank, num_replicas):
        self.own = [i for i in range(len(dataset)) if i % num_replicas == rank]
