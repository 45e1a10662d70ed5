"""Several machines that keep one spool: one leads, the others follow, and one of these takes over. A member is a state
machine without I/O, `member.py`, with the roles `leader.py` and `follower.py`: it takes inputs, leaves the effects of
`effects.py` for its driver, and reads no clock, socket or file. `key.py` is the key in etcd, `stream.py` the numbered
records, `messages.py` what members send each other, `durable.py` what a member keeps on its disk. `recording_fs.py`
makes records of what a server changes in its spool, `follower_spool.py` applies them, `compare.py` says what a copy
lacks, `spool_names.py` which files are replicated. etcd/ reads and writes the key: only `client` and `connection` there
know trio. docs/replication.md has the rules. A server that stands alone loads nothing of this.
"""
