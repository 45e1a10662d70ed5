"""Histories of the server's hub.

`net.py` has descriptors and the poller, `workers.py` the hub's threads, `world.py` the machine, `clients.py` the
requests and replies of clients, `run.py` the steps, `ledgers.py` the items that must be there after an accident. No
real socket is opened.
"""
