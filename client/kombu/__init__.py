"""The transport for kombu, and so for Celery: `staniel://host:port` once `staniel.kombu` is imported; docs/celery.md.

`transport` has the sockets of a kombu connection, `channel` the meaning of kombu's queues, `exchanges` where a message
goes, `consuming` how queues are read, `wire` one socket, `names` and `envelope` what the server sees, `stopping` a step
of Celery's workers. Only this room needs kombu (the extra `celery`). It blocks, since kombu does, and needs no event
loop but kombu's own.
"""
