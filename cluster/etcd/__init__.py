"""A client of etcd, by its JSON gateway (docs/decisions/0040): a few keys, leases, and a watch.

`client` tries the endpoints in turn, `watch` follows a key or a prefix across lost connections, `connection` is the
socket; `exchange` reads HTTP by h11 and `messages` reads JSON, both without a socket; `errors` says what was not
possible. What a key means may not enter.
"""
