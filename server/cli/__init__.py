"""The `staniel` command: options, output, exit codes. journal/tools/ and the formats' folders read, verify and convert
journals; a running server loads only the progress display from here. `top/` is `staniel top`, the full screen.
"""
