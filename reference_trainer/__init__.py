"""The reference trainer: a short real training run over the job's own nodes, with a result that is known in advance.

It runs in the ranks' own interpreter, so all code here uses Python 3.8 and imports torch only inside functions.
"""
