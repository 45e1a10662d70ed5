"""The transport for kombu, and so for Celery: `staniel://host:port` once `staniel.kombu` is imported; docs/celery.md.

`transport` has the sockets of a kombu connection, `channel` the meaning of kombu's queues, `exchanges` the routing of
messages, `consuming` the reading of queues, `wire` one socket, `names` and `envelope` the names and items on the
server, `stopping` a step of Celery's workers. Only this room needs kombu (the extra `celery`). It blocks, as kombu
does, and needs no event loop except kombu's own.
"""
