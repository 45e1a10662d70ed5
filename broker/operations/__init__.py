"""Operations on the queues of a running server for every interface: HTTP, the command line, memcache's commands.

`move`, `purge`, `redrive` and `deletions` do long work a slice a turn; `running` has the operations under way, `undo`
and `moved_back` take one back, `resumption` continues them after a stop and `undo_recovery` after a crash. `audit` logs
who asked. Nothing here knows how a request came.
"""
