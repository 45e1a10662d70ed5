"""Settings of object stores by Hadoop's names (`fs.s3a.*`), as Spark sessions have them, and what they are in a URL.

A URL takes them along to every process. What a URL says itself goes before a setting.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, unquote, urlencode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PREFIX = "fs.s3a."
OF_BUCKET = "bucket."
SPARKS_PREFIX = "spark.hadoop."
DEFAULTS = "core-default.xml"  # where Hadoop's own values come from: no operator set them
ANONYMOUS = "AnonymousAWSCredentialsProvider"
NAMES = (
    "access.key",
    "secret.key",
    "session.token",
    "endpoint",
    "endpoint.region",
    "connection.ssl.enabled",
    "assumed.role.arn",
    "aws.credentials.provider",
)
OURS = {"session_token", "role_arn", "anonymous"}  # options of a URL that pyarrow's URLs do not have
NONE: Mapping[str, str] = MappingProxyType({})


def settings_of(spark: SparkSession) -> dict[str, str]:
    """Return the settings that were set for a session. As in Spark, those of `spark.conf.set("fs.s3a.…")` go before the
    Hadoop configuration of the context, and that before `spark.hadoop.…`.
    """
    given = {name: str(value) for name, value in dict(spark.conf.getAll).items()}
    settings = {
        name.removeprefix(SPARKS_PREFIX): value
        for name, value in given.items()
        if name.startswith(SPARKS_PREFIX + PREFIX)
    }
    context = getattr(spark, "_jsc", None)  # Spark Connect has none
    if context is not None:
        hadoop = context.hadoopConfiguration()
        for name in (PREFIX + name for name in NAMES):
            sources = hadoop.getPropertySources(name)
            if sources is not None and list(sources)[-1] != DEFAULTS:
                settings[name] = str(hadoop.get(name))
    return settings | {name: value for name, value in given.items() if name.startswith(PREFIX)}


def with_settings(url: str, settings: Mapping[str, str]) -> str:
    """Return an `s3:` or `s3a:` URL with the settings of its bucket, and any other path as it is."""
    scheme, mark, named = url.partition("://")
    if not mark or scheme.lower() not in ("s3", "s3a") or not settings:
        return url
    place, _, query = named.partition("?")
    user, at, path = place.rpartition("@")
    options = dict(parse_qsl(query, keep_blank_values=True))
    wanted = _of_bucket(path.partition("/")[0], settings)
    if not at and "anonymous" not in options:
        user = _user_of(wanted, options)
    for name, value in _options_of(wanted).items():
        options.setdefault(name, value)
    return f"s3://{user}{'@' if user else ''}{path}{'?' if options else ''}{urlencode(options, quote_via=quote)}"


def _of_bucket(bucket: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings without prefixes; those of the bucket go before those of all."""
    plain = {name.removeprefix(PREFIX): value for name, value in settings.items()}
    own = f"{OF_BUCKET}{bucket}."
    return {name: value for name, value in plain.items() if not name.startswith(OF_BUCKET)} | {
        name.removeprefix(own): value for name, value in plain.items() if name.startswith(own)
    }


def _user_of(wanted: Mapping[str, str], options: dict[str, str]) -> str:
    """Return the part of a URL before the @, and add what belongs to it to its options."""
    if ANONYMOUS in wanted.get("aws.credentials.provider", ""):
        options["anonymous"] = "true"
        return ""
    key, secret = wanted.get("access.key", ""), wanted.get("secret.key", "")
    if not (key and secret):
        return ""
    if token := wanted.get("session.token"):
        options["session_token"] = token
    return f"{quote(key, safe='')}:{quote(secret, safe='')}"


def _options_of(wanted: Mapping[str, str]) -> dict[str, str]:
    scheme, mark, endpoint = wanted.get("endpoint", "").rpartition("://")
    is_plain = wanted.get("connection.ssl.enabled", "true").lower() == "false" or scheme == "http"
    made = {"endpoint_override": endpoint.rstrip("/"), "region": wanted.get("endpoint.region", "")}
    made |= {"scheme": "http"} if is_plain and not (mark and scheme == "https") else {}
    made["role_arn"] = wanted.get("assumed.role.arn", "")
    return {name: value for name, value in made.items() if value}


def open_store(url: str) -> tuple[Any, str] | None:
    """Return the file system and path of an `s3:` URL with options that pyarrow's URLs do not have; None for others."""
    from pyarrow import fs

    place, _, query = url.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    if not url.startswith("s3://") or not OURS & options.keys():
        return None
    user, _, path = place.removeprefix("s3://").rpartition("@")
    key, _, secret = user.partition(":")
    known: dict[str, Any] = {name: value for name, value in options.items() if name != "anonymous"}
    known |= {"access_key": unquote(key), "secret_key": unquote(secret)} if user and "role_arn" not in options else {}
    known |= {"anonymous": True} if options.get("anonymous") == "true" else {}
    if known.pop("allow_bucket_creation", "false") == "true":
        known["allow_bucket_creation"] = True
    return fs.S3FileSystem(**known), path
