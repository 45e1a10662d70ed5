"""Several servers as one cluster, of which one leads and the others follow.

etcd/ reads and writes what the servers have agreed on. Decisions may not enter the code that talks, nor sockets and
clocks the code that decides: only `client` and `connection` of etcd/ know trio. A server that stands alone loads
nothing of this package.
"""
