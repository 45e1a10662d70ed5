"""What the ancestors do, as data: each case is played against the real server or held against the files it leaves.

kestrel/: Kestrel 2.4, worked out from its behaviour and held against its journal, queue and memcache code, run.
memcached/: what today's memcached clients hear from our own dialect. What is missing is listed in not_yet.py.
"""
