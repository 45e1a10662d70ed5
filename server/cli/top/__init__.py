"""The command `staniel top`: the queues of a running server on a full screen, as they change.

It is a thin reader of `/api/events`, the stream that the page uses: an idle server sends nothing, and only ages are
drawn again. `model` has the received data, `frame` turns it into lines, `feed` receives and reconnects, `screen`
handles the terminal and its keys. Only `frame` and `screen` need rich, the extra `top`.
"""
