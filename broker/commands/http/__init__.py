"""The admin listener's requests: who may ask (`guard`), what is asked (`routes`), and the answers.

`queries` look, `actions` change, `kestrel` has the old paths of Kestrel's admin port, `openapi` describes all of it,
`events` is the stream that pages listen to, `page` sends their files. What they do stands in broker/operations; here
are only its paths and its JSON.
"""
