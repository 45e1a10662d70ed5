"""The operators' socket of a spool: its name, and its permissions.

The socket is an abstract Unix socket: the spool needs no socket file, which programs that copy folders could not
handle, and a copy of a spool is never mistaken for the spool. Its name is made of the device and inode of the spool's
own folder. Such a name has no file permissions, and any program can take it, so each end asks the kernel for the
identity of the other. Abstract names belong to a network namespace: a container has its own. Source: unix(7).
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys

UCRED = struct.Struct("iII")  # the result of SO_PEERCRED: pid, uid, gid
ROOT = 0


def socket_address(folder: str) -> bytes:
    """Return the address for the spool whose own folder this is. Raises OSError if the folder is missing, or the system
    has no such sockets.
    """
    if sys.platform != "linux":
        raise OSError(errno.EOPNOTSUPP, "abstract Unix sockets are Linux's alone")
    status = os.stat(folder)
    return f"\0staniel-admin-{status.st_dev}-{status.st_ino}".encode()


def credentials(sock: socket.socket) -> tuple[int, int, int]:
    """Return (pid, uid, gid) of the process at the other end, as it was when it connected or began to listen."""
    pid, uid, gid = UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, UCRED.size))
    return pid, uid, gid


def allowed_clients() -> frozenset[int]:
    """Return the uids whose programs a server serves there."""
    return frozenset((os.geteuid(), ROOT))


def distrust(sock: socket.socket, folder: str) -> str:
    """Return why this process must not trust the server that `sock` is connected to; empty if it may. Raises
    OSError.
    """
    _, uid, _ = credentials(sock)
    own = os.geteuid()
    if uid == own:
        return ""
    if own != ROOT:
        return f"the server is user {uid}'s, and this command user {own}'s: run it as that user, or as root"
    owner = os.stat(folder).st_uid
    if uid == owner:
        return ""
    return f"user {uid} answers for it, and {folder} is user {owner}'s: it need not be this spool's server"
