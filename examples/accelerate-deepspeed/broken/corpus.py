from torch.utils.data import Dataset


class Corpus(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        return {"input_ids": [index], "labels": [index]}
