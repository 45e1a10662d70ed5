"""Histories of the server's hub.

`net.py` are descriptors and the poller, `workers.py` its threads, `world.py` the machine, `clients.py` what clients
send and receive, `run.py` the steps, `ledgers.py` what must be there after an accident. No real socket is opened.
"""
