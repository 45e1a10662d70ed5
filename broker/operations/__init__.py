"""Operations on the queues of a running server for every interface: HTTP, the command line, memcache's commands.

`move`, `purge`, `redrive` and `deletions` do long work, a slice a turn; `transfer` is the base of those that carry
items. `running` has the operations under way. `undo` and `moved_back` undo one. `resumption` continues them after a
stop, `undo_recovery` after a crash. `pauses` keeps pauses over a restart, `backup` holds the files of a copy, `audit`
logs who asked. No code here depends on the interface of a request.
"""
