"""The columns of the views that every format has: `state` and `history`. A column that a format's files cannot fill is
null, so that rows of spools of any formats stand in one table.
"""

from __future__ import annotations

import pyarrow as pa

from staniel.pipeline.lake.arrow import TIME, schema

ITEM = {
    "id": pa.int64(),
    "value": pa.binary(),
    "size": pa.int64(),
    "addTime": TIME,
    "expireTime": TIME,
    "flags": pa.int64(),
}
PLACE = {"file": pa.string(), "offset": pa.int64()}
STATE = schema(
    queue=pa.string(),
    position=pa.int64(),
    state=pa.string(),
    **ITEM,
    deliveries=pa.int32(),
    xid=pa.int32(),
    **PLACE,
    reader=pa.string(),
    jobId=pa.string(),
    dueTime=TIME,
    priority=pa.int64(),
)
HISTORY = schema(
    queue=pa.string(),
    event=pa.string(),
    time=TIME,
    asOf=TIME,
    id=pa.int64(),
    jobId=pa.string(),
    reader=pa.string(),
    deliveries=pa.int32(),
    xid=pa.int32(),
    by=pa.string(),
    origin=pa.string(),
    times=pa.int64(),
    value=pa.binary(),
    size=pa.int64(),
    addTime=TIME,
    expireTime=TIME,
    dueTime=TIME,
    **PLACE,
)
OF_ALL_FORMATS = {"state": STATE, "history": HISTORY}
"""The columns of the views in which rows of spools of any formats stand together."""
