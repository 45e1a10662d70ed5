"""Our server beside redis, beanstalkd and memcached: the workloads, the servers, the load generator and the rounds.

`queue_load.c` is the generator, `workloads.py` the table; a new row of the table is a new line there.
"""
