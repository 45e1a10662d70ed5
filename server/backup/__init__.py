"""Backups: copies of a spool at one moment. Several are in one place, which has each file's bytes once.

`manifest` says what a backup is, `store` where they are (`folder_store`, `s3_store`), `source` where the files come
from, a running server or a spool at rest; `take`, `restore` and `check` are what is done with them, `tidy` removes what
nothing needs; `adopt` makes a spool of another server's folder. The commands are in server/cli. No server imports this:
a backup is copied by the command.
"""
