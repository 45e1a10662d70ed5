"""The admin listener's requests: authentication (`dispatch`), paths (`routes`), and replies.

`queries` look, `actions` change, `kestrel` has the old paths of Kestrel's admin port, `openapi` describes all paths,
`events` is the stream that pages listen to, `page` sends the page's files. The operations themselves are in
broker/operations; this package has only their paths and their JSON.
"""
