"""Backups: copies of a spool at one moment. A store holds several backups, and the bytes that they share only once.

`manifest` describes a backup, `store` the places for backups (`folder_store`, `s3_store`), `source` the origin of the
files: a running server or a spool at rest. `take`, `restore` and `check` work on backups, `tidy` removes unneeded data;
`adopt` makes a spool from another server's folder. The commands are in server/cli. The server does not import this
package: the command copies the files.
"""
