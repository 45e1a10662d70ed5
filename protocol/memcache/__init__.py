"""The memcache protocol in two dialects: memcached's, for today's clients, and that of Kestrel 2.4.

`parser` makes requests of bytes: `commands`, `commands_meta` and `commands_kestrel` read lines, `fields` and `keys`
their words. `requests` has a Struct for each command, but for the most frequent ones
of `item_requests`; `replies` are bytes in each dialect. What a command does to a queue may not enter.
"""
