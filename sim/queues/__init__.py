"""Histories of queues.

`workload.py` makes the requests, `conversation.py` reads the replies, `recorder.py` reports the changes of queues,
`model.py` applies them, `checker.py` judges during a life and `promises.py` after a crash. `run.py` joins them.
"""
