"""The `staniel` command: options, output, exit codes. journal/tools/ and the formats' folders read, verify and convert
journals; a running server loads nothing from here.

`main` has the groups of commands and loads a module when it is needed. Commands on a running server: `live` shows its
state, puts and gets; `changing` moves, removes and pauses; `finding` finds items; `operations` shows and cancels long
operations. `live_command` and `admin_client` find the server and send it requests, `following` waits for an operation.
Commands on files: `journal`, `journal_reading`, `journal_repair`, `journal_damaged`, `verify`, `backup`, `adopt`.
`text` formats output. `top/` is `staniel top`, the full screen.
"""
