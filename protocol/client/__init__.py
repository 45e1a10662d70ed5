"""The client's half of protocols, without a socket: used by `staniel.client` and by `staniel.pipeline`.

Here is that of memcache: `requests` writes requests, `replies` defines replies, `conversation` matches replies to
requests. `workq/` has the same for jobs.
"""
