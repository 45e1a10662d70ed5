"""Kestrel's text protocol: one command a line, or a put of several lines that ends with an empty one.

`parser` does the framing, `commands` makes requests of lines, `requests` and `replies` are the messages. What a command
does to a queue may not enter.
"""
