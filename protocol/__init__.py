"""Protocols as bytes.

`memcache/` has Kestrel's dialect and memcached's, `text/`, `thrift/` and `workq/` the other protocols of clients,
`http/` the operators' protocol, `client/` the client's half of memcache. Each folder has a `parser` (bytes to
requests), the `commands` that it reads, its `requests` and `replies` and, where needed, `fields` of its lines. Shared
modules are here: `requests` (Invalid, More), `words`, `limits`, `memo`, `escaping` and `http`. No module here knows
queues, sockets or the time, and none raises for bytes of a peer.
"""
