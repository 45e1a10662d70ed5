"""Handlers of requests: one function for each type of request, and for each protocol a table that finds it
(memcache.py, meta.py, text.py, thrift.py, workq.py). gets.py, puts.py, changes.py, monitor.py and batches.py are shared
by several protocols, keyed_puts.py stores what has an idempotency key, by_id.py ends one read by its id; admin.py has
the operator's commands of memcache. rules.py says who may send a request, authorized.py makes the tables of clients
with less than all rights, guarded.py turns an exception into a reply. HTTP is in broker/admin/http. Bytes of requests
may not enter.
"""
