"""The client's half of the workq protocol, without a socket: `requests` writes requests, `replies` defines replies,
`conversation` matches replies to requests. Nothing here knows memcache's protocol but the words for errors.
"""
