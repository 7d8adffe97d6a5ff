import lightning as L

def run(p):
    return L.Fabric(strategy="deepspeed", precision=p)
