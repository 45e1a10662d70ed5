"""The `staniel` command: options, output, exit codes. journal/tools/ and the formats' folders read, verify and convert
journals; a running server loads nothing from here.

`main` has the groups of commands and loads a module when it is needed. Of a running server: `live` (looks, put, get),
`changing` (what moves, removes or pauses), `finding` and `operations`; `live_command` and `admin_client` find the
server and ask it, `following` waits for an operation. Of files: `journal`, `journal_reading`, `journal_repair`,
`journal_damaged`, `verify`, `backup`, `adopt`. `text` says how output looks.
`top/` is `staniel top`, the full screen.
"""
