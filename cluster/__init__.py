"""Several machines that keep one spool: one leads, the others follow, and one of these takes over.

A member is a state machine that takes inputs and leaves effects for its driver: it reads no clock, socket or file.
`member.py` joins the parts: `leader.py` and `follower.py` are the two roles, `core.py` is what both use, `key.py` the
key in etcd, `stream.py` the numbered records, `messages.py` what members send each other, `durable.py` what a member
keeps on its disk, `effects.py` what the driver is asked to do.

`recording_fs.py` makes the content of records of what a server changes in its spool, `follower_spool.py` applies it,
`compare.py` says what a copy lacks; `spool_names.py` has the files that are replicated, `spool_changes.py` the records.

etcd/ reads and writes the key: only `client` and `connection` there know trio. docs/replication.md has the rules. A
server that stands alone loads nothing of this.
"""
