"""The text of an error after the system refuses a call on a file: the call, the file, the reason, and what an operator
can do.

The table of calls is tests/journal/disk/refused_calls.md; test_refused_calls.py goes through it with each errno.
"""

from __future__ import annotations

import errno

REMEDIES = {
    errno.EACCES: "run the server as the user that owns the spool, or chown the file to it; look at SELinux, AppArmor",
    errno.EPERM: "look for chattr +i, a seccomp filter (SystemCallFilter=), SELinux or AppArmor that forbids it",
    errno.EROFS: "look at the system's log for why it is read-only, check the file system, mount it again, then start",
    errno.EIO: "look at the disk and the system's log (dmesg), then start again",
    errno.ENOSPC: "make room on its disk, then start again",
    errno.EDQUOT: "raise the quota, or make room, then start again",
    errno.EMFILE: "raise the limit of open files (ulimit -n, LimitNOFILE=), then start again",
    errno.ENFILE: "raise the system's limit of open files (fs.file-max), then start again",
    errno.ENOMEM: "give the server more memory (MemoryMax=), then start again",
    errno.EAGAIN: "raise the limit of processes and threads (ulimit -u, TasksMax=), then start again",
    errno.EFBIG: "raise the limit of file sizes (ulimit -f, LimitFSIZE=), then start again",
    errno.EXDEV: "put the whole spool, with .staniel, on one file system without mounts in it, then start again",
    errno.ENAMETOOLONG: "give a spool with a shorter path, on a file system that takes names of 255 bytes",
    errno.ESTALE: "mount its file system again, then start",
    errno.EBUSY: "look for the mount or the program that holds it (findmnt, fuser), then start again",
    errno.ETXTBSY: "look for the program that holds it (fuser), then start again",
    errno.ELOOP: "repair the symbolic link, then start again",
    errno.ENOLCK: "use a file system that has locks (flock), or raise the system's limit of locks",
    errno.ENOSYS: "allow the call in the seccomp filter (SystemCallFilter=), or use a system that has it",
    errno.EOPNOTSUPP: "use a file system that has this call (ext4, xfs, btrfs)",
}

OF_TOOLS = {
    "run the server as the user that owns the spool": "run this as the user that owns the files",
    "chown the file to it": "chown them to it",
    "give the server more memory (MemoryMax=)": "give this command more memory",
    "ulimit -n, LimitNOFILE=": "ulimit -n",
    "then start again": "then run this again",
    "then start": "then run this again",
}
"""The words that differ between remedies for a server and for a command: (the server's, the command's)."""


def described(error: OSError, path: str = "") -> str:
    """Return a text like `cannot rename A to B: Permission denied`. `path`: the file, if the error does not name it."""
    names = [str(name) for name in (error.filename or path, error.filename2) if name]
    if not names:
        return error.strerror or str(error)
    verb = getattr(error, "call", "use")
    return f"cannot {' '.join([verb, ' to '.join(names)])}: {error.strerror or error}"


def refused_tool(error: OSError, path: str = "", otherwise: str = "look at the system's log, then try again") -> str:
    """Return the line of a command that ends because of the error: call, path, reason, and what its user can do."""
    advice = remedy(error, otherwise)
    for of_server, of_tool in OF_TOOLS.items():
        advice = advice.replace(of_server, of_tool)
    return f"{described(error, path)}; {advice}"


def failure_line(error: Exception, path: str = "") -> str:
    """Return the line of a command that ends because of a refused call, or of the journal failure that such a call has
    caused.
    """
    refused = error if isinstance(error, OSError) else error.__cause__
    return refused_tool(refused, path) if isinstance(refused, OSError) else str(error)


def remedy(error: BaseException | None, otherwise: str) -> str:
    """Return what an operator can do about the error; `otherwise` if that depends on more than the errno."""
    number = error.errno if isinstance(error, OSError) else None
    return REMEDIES.get(number or 0, otherwise)


def remedy_in_service(error: OSError, otherwise: str) -> str:
    """Return the remedy for a refusal that a running server survives, without the advice to start it again."""
    return remedy(error, otherwise).removesuffix(", then start again")
