"""The operator's page as a browser loads it: HTML, a style sheet, modules of JavaScript. No build step, no library.

Text from the server is set as text, never as markup. broker/admin/http/page.py serves the files.
"""
