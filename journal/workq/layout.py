"""The layout of the command log's records: kinds, sizes, and the epoch of TIME. encoder.py describes it."""

from __future__ import annotations

import struct

ADD, SCHEDULE, COMPLETE, FAIL, DELETE, EXPIRE, START_ATTEMPT, TIMEOUT_ATTEMPT = range(1, 9)
TIME_BYTES = 15
CRC = struct.Struct(">I")
CRC_BYTES = CRC.size
ID_BYTES = 16
BARE_BYTES = 1 + ID_BYTES  # a payload that is a type and an id

NS_A_SECOND = 1_000_000_000
YEAR_1_S = -62_135_596_800  # 1 January of the year 1, from which TIME counts, in seconds since 1970
UTC = -1
TIME = struct.Struct(">bqih")  # its version, seconds, nanoseconds, zone
NO_TIME = b"\x01" + 12 * b"\x00" + b"\xff\xff"
