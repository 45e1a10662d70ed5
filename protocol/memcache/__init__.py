"""The memcache protocol in two dialects: memcached's, for today's clients, and that of Kestrel 2.4.

`commands`, `commands_meta` and `commands_kestrel` read lines, `keys` the keys of reads, `line_cache` caches parsed
lines. What a command does to a queue may not enter.
"""
