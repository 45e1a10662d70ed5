"""Kestrel's thrift service, with finagle's headers.

`frames` is the transport, `service` reads and writes structs, `kestrel.thrift` declares them. `parser`, `replies` and
`service` import thriftpy2, an extra: the others may not.
"""
