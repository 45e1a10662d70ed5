"""Protocols as bytes.

The rooms: `memcache/` in Kestrel's dialect and in memcached's, `text/`, `thrift/` and `workq/` for the other protocols
of clients, `http/` for operators, `client/` for the client's half of memcache. Each room has a `parser` (bytes to
requests), the `commands` that it reads, its `requests` and `replies` and, where it needs them, `fields` of its lines.
What all of them use is here: `requests` (Invalid, More), `words`, `limits`, `memo`, `escaping` and `http`. Nothing here
knows queues, sockets or the time, and nothing raises for what a peer sends.
"""
