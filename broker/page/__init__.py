"""The operator's page as a browser loads it: HTML, a style sheet, modules of JavaScript. No build step, no library.

Text that comes from the server is set as text, never as markup. They are served by
broker/commands/http/page.py.
"""
