"""Histories of workq's jobs.

The files are those of `queues/`: workload, conversation, model, checker, promises, run. Jobs have one journal, so there
is no recorder.
"""
