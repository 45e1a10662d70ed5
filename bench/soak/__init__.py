"""Servers killed under load again and again: a test of correctness, not a measurement.

`loop.py` is the command and the order of a cycle, `victim.py` the process that is killed, `clients.py` the clients of
queues, `jobs.py` those of jobs, `ledger.py` the judge. The judge of a promise never uses the server's own code. `mix/`
is the other soak, hours of everything at once, and `cluster/` that of several servers with one spool.
"""
