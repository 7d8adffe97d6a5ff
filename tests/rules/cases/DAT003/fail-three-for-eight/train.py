import webdataset
files = ['a.tar', 'b.tar', 'c.tar']
data = webdataset.WebDataset(files)
