"""Makes the blocking client of the asynchronous one: client/blocking/ of client/aio/, word by word, as httpcore does.

`make blocking` runs it. With `--check` it writes nothing, and fails if a file is not what it would write. The wording
of both is that of the asynchronous source, so write there what is true of both: SUBSTITUTIONS has the few words that
differ.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE, TARGET = ROOT / "client" / "aio", ROOT / "client" / "blocking"
FILES = (
    *("client.py", "closing.py", "cluster_jobs.py", "connection.py", "jobs.py", "leading.py"),
    *("monitoring.py", "multi.py", "pool.py"),
)
HEAD = (
    "# Made of client/aio/{name} by packaging/blocking_client.py (`make blocking`): change that file, not this one.\n"
)
SUBSTITUTIONS = (
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\basynccontextmanager\b", "contextmanager"),
    (r"\bAsyncIterator\b", "Iterator"),
    (r"\bStopAsyncIteration\b", "StopIteration"),
    (r"\b__a(enter|exit|iter|next)__\b", r"__\1__"),
    (r"(?m)\bin_shield\((.+)\)$", r"\1"),
    (r"\bin_shield, ", ""),
    (r"\bAwaitable, ", ""),
    (r"\bAwaitable\[([^\]]+)\]", r"\1"),
    (r"\bstaniel\.client\.aio\b", "staniel.client.blocking"),
    (r"\b(another|each|one) task\b", r"\1 thread"),
    (r"`async with` block", "`with` block"),
    (r"\bis cancelled\b", "is interrupted"),
    (r"\ba cancelled (get|call)\b", r"an interrupted \1"),
)


def blocking(text: str, name: str) -> str:
    """Return the blocking twin of a source."""
    for pattern, twin in SUBSTITUTIONS:
        text = re.sub(pattern, twin, text)
    path = TARGET / name
    text = _ruff(
        ["check", "--fix", "--quiet", "--select", "I", "--stdin-filename", str(path), "-"],
        HEAD.format(name=name) + text,
    )
    return _ruff(["format", "--stdin-filename", str(path), "-"], text)


def _ruff(arguments: list[str], text: str) -> str:
    command = [str(Path(sys.executable).with_name("ruff")), *arguments]
    done = subprocess.run(command, input=text, capture_output=True, text=True, cwd=ROOT)
    if done.returncode != 0:
        raise SystemExit(f"ruff: {done.stderr.strip()}")
    return done.stdout


def unused() -> list[str]:
    """Return the substitutions that change nothing in any source."""
    texts = [(SOURCE / name).read_text("utf-8") for name in FILES]
    return [pattern for pattern, _ in SUBSTITUTIONS if not any(re.search(pattern, text) for text in texts)]


def stale() -> list[str]:
    """Return the files that are not what their source gives."""
    return [
        name
        for name in FILES
        if not (TARGET / name).exists()
        or (TARGET / name).read_text("utf-8") != blocking((SOURCE / name).read_text("utf-8"), name)
    ]


def main() -> None:
    if "--check" in sys.argv[1:]:
        if names := stale():
            raise SystemExit(f"client/blocking is not made of client/aio: {', '.join(names)}. Run `make blocking`.")
        return
    for name in FILES:
        (TARGET / name).write_text(blocking((SOURCE / name).read_text("utf-8"), name), "utf-8")
    print(f"{len(FILES)} files in {TARGET.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
