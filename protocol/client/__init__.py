"""The client's half of the memcache protocol, without a socket: used by `staniel.client` and by `staniel.pipeline`.

`requests` writes requests, `replies` names replies, `conversation` matches the ones to the others.
"""
