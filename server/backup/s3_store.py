"""Backups in a bucket of S3, or of another server with its protocol. boto3 finds keys, region and end point in the
environment (AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, …), ~/.aws, or the machine's role.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

from staniel.server.backup.manifest import BackupError
from staniel.server.backup.store import LocalFile, Progress, Stored, data_name, stored_data

PIECE_BYTES = 1 << 20
PART_BYTES = 64 << 20  # a part of an upload; S3 takes 10,000 parts
REMOVED_AT_ONCE = 1_000
DAY_MS = 86_400_000
MISSING = "s3:// needs boto3: pip install 'staniel[s3]'"


class S3Store:
    """A Store in a bucket. `place` is //BUCKET/PREFIX."""

    quiet_ms = DAY_MS  # there is no lock: a second process may be about to use data that it has just stored

    def __init__(self, place: str) -> None:
        try:
            import boto3
            from boto3.s3.transfer import TransferConfig
            from botocore.exceptions import BotoCoreError, ClientError
        except ImportError:
            raise BackupError(MISSING) from None
        self._bucket, _, prefix = place.removeprefix("//").partition("/")
        prefix = prefix.strip("/")
        if not place.startswith("//") or not self._bucket:
            raise BackupError(f"cannot use s3:{place}: expected s3://BUCKET/PREFIX")
        self._prefix = f"{prefix}/" if prefix else ""
        self.where = f"s3://{self._bucket}/{prefix}".rstrip("/")
        self._errors = (BotoCoreError, ClientError, OSError)
        self._transfer = TransferConfig(
            multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES, use_threads=False
        )
        self._known: dict[str, int] | None = None  # the lengths of stored data, by checksum
        with self._refusals_as_errors():
            self._client: Any = boto3.client("s3")

    def names(self, prefix: str) -> dict[str, Stored]:
        entries: dict[str, Stored] = {}
        with self._refusals_as_errors():
            pages = self._client.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix + prefix):
                for entry in page.get("Contents", ()):
                    changed_at_ms = int(entry["LastModified"].timestamp() * 1000)
                    entries[entry["Key"].removeprefix(self._prefix)] = Stored(entry["Size"], changed_at_ms)
        return entries

    def read(self, name: str) -> bytes | None:
        with self._refusals_as_errors():
            try:
                answer = self._client.get_object(Bucket=self._bucket, Key=self._prefix + name)
            except self._client.exceptions.NoSuchKey:
                return None
            data: bytes = answer["Body"].read()
            return data

    def pieces(self, name: str) -> Iterator[bytes]:
        with self._refusals_as_errors():
            answer = self._client.get_object(Bucket=self._bucket, Key=self._prefix + name)
            yield from answer["Body"].iter_chunks(PIECE_BYTES)

    def write(self, name: str, data: bytes) -> None:
        with self._refusals_as_errors():
            self._client.put_object(Bucket=self._bucket, Key=self._prefix + name, Body=data)

    def add(self, file: LocalFile, progress: Progress) -> tuple[str, bool]:
        """Store a file. It is read twice, because an object needs its name, the checksum, from the beginning."""
        if self._known is None:
            self._known = {checksum: stored.bytes for checksum, stored in stored_data(self).items()}
        with self._refusals_as_errors(), open(file.path, "rb") as opened:
            checksum = _checksum(FileBytes(opened, file, lambda size: None))
            if self._known.get(checksum) == file.bytes:
                progress(file.bytes)
                return checksum, False
            body = FileBytes(opened, file, progress)
            self._client.upload_fileobj(body, self._bucket, self._prefix + data_name(checksum), Config=self._transfer)
        self._known[checksum] = file.bytes
        return checksum, True

    def remove(self, names: list[str]) -> None:
        with self._refusals_as_errors():
            for first in range(0, len(names), REMOVED_AT_ONCE):
                keys = [{"Key": self._prefix + name} for name in names[first : first + REMOVED_AT_ONCE]]
                answer = self._client.delete_objects(Bucket=self._bucket, Delete={"Objects": keys, "Quiet": True})
                if answer.get("Errors"):
                    why = answer["Errors"][0].get("Message", "refused")
                    raise BackupError(f"cannot remove objects from {self.where}: {why}")

    def abort_uploads(self, before_ms: int) -> None:
        """Abort uploads in parts: their stored parts cost money."""
        with self._refusals_as_errors():
            pages = self._client.get_paginator("list_multipart_uploads")
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix):
                for upload in page.get("Uploads", ()):
                    if upload["Initiated"].timestamp() * 1000 < before_ms:
                        self._client.abort_multipart_upload(
                            Bucket=self._bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                        )

    def close(self) -> None:
        self._client.close()

    @contextmanager
    def _refusals_as_errors(self) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            raise BackupError(f"cannot use {self.where}: {error}") from error


class FileBytes:
    """A range of an open file as a file object; the file may grow meanwhile."""

    def __init__(self, opened: Any, file: LocalFile, progress: Progress) -> None:
        self._opened, self._file, self._progress = opened, file, progress
        self._at = 0

    def read(self, count: int | None = -1) -> bytes:
        left = self._file.bytes - self._at
        wanted = left if count is None or count < 0 else min(count, left)
        data: bytes = os.pread(self._opened.fileno(), wanted, self._file.at + self._at)
        if wanted and not data:
            raise BackupError(f"{self._file.path} was truncated while it was copied: make the backup again")
        self._at += len(data)
        self._progress(len(data))
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._file.bytes}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def close(self) -> None:
        """Do nothing: the opener closes the file."""


def _checksum(body: FileBytes) -> str:
    hashed = sha256()
    while piece := body.read(PIECE_BYTES):
        hashed.update(piece)
    return hashed.hexdigest()
