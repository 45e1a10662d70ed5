"""Handlers of requests: one function for each type of request, and for each protocol a table that finds it
(memcache.py, meta.py, text.py, thrift.py, workq.py). Several protocols share gets.py, puts.py, changes.py, monitor.py
and batches.py. first_of.py reads from the first of several queues, keyed_puts.py stores items with idempotency keys,
delayed_puts.py those with a delay, by_id.py ends one read by its id. admin.py has the operator's commands of memcache.
rules.py says who may send a request, authorized.py makes the tables of clients with less than all rights, guarded.py
turns an exception into a reply. HTTP is in broker/admin/http. No code here handles the bytes of requests.
"""
