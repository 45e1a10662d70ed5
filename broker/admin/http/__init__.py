"""The admin listener's requests: authentication (`dispatch`), paths (`routes`), and replies.

`queries` has the requests that look, `actions` those that change something, `kestrel` the paths of Kestrel's admin
port. `openapi` describes all paths, `events` is the stream for pages, `page` sends the page's files. The operations
themselves are in broker/operations; this package has only their paths and their JSON.
"""
