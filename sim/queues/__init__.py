"""Histories of queues.

`workload.py` asks, `conversation.py` reads the answers, `recorder.py` reports what queues record, `model.py` folds
that, `checker.py` judges while it happens and `promises.py` after a crash; `run.py` joins them.
"""
