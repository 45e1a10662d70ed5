"""The redo log: two preallocated files, its segments. Each batch of durable queues is written and synced there before
the files of the queues themselves are synced. `records.py` has the format, `log.py` writes the log, `replay.py` brings
files up to date after a power cut.
"""
