"""The client's half of the memcache protocol, without a socket: used by `staniel.client` and by `staniel.pipeline`.

`requests` writes requests, `replies` defines replies, `conversation` matches replies to requests.
"""
