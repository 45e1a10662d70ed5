"""The redo log: one preallocated file that each batch of durable queues is written and synced to, before the files of
the queues themselves are synced.

`records.py` is what its bytes mean, `log.py` writes it, `replay.py` brings files up to date after a power cut.
"""
