"""HTTP/1.1 for operators: bytes to requests through h11, and replies as bytes.

`parser` does the framing, `requests` and `replies` are the messages, `detect` recognizes HTTP sent to another protocol.
What a request does may not enter. Only `parser` imports h11, and only a server with an admin listener imports `parser`.
"""
