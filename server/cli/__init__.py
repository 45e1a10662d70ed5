"""The `staniel` command: options, what is printed, exit codes. Reading, verifying and converting journals is done in
journal/tools/ and the formats' rooms; a running server loads nothing from here but the progress display. `top/` is
`staniel top`, the full screen.
"""
