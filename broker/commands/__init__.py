"""Handlers of requests: one function for each type of request, and for each protocol a table that finds it
(memcache.py, meta.py, text.py, thrift.py, workq.py). gets.py, puts.py, changes.py, monitor.py and batches.py are shared
by several protocols; admin.py has the operator's commands of memcache, http/ the paths of the operators' HTTP
interface. Bytes of requests may not enter.
"""
