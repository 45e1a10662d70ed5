"""Histories of workq's jobs.

The files are the same as in `queues/`: workload, conversation, model, checker, promises, run. There is no recorder,
because all jobs have one journal.
"""
