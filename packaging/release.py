"""Builds a release twice, and keeps it if both builds are identical, byte for byte: `make release`.

Both builds are of the last commit, in folders of different names, with different time zones, umasks, locales and hash
seeds; only SOURCE_DATE_EPOCH, the commit's time, is the same. dist/ gets the sdist, the wheel of plain Python, the
compiled wheel of this interpreter (not with --pure), the SBOM, the licences, the requirements with their hashes, and
SHA256SUMS of all files.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLAIN, COMPILED = {"STANIEL_PURE": "1"}, {"STANIEL_BUILD": "compiled"}  # what packaging/build_hook.py reads
# A build must not depend on any of these.
TWO = (
    {"TZ": "UTC", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "1", "umask": "022", "folder": "a"},
    {"TZ": "Asia/Tokyo", "LC_ALL": "C", "PYTHONHASHSEED": "2", "umask": "077", "folder": "another-folder"},
)


def output(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def build(where: dict[str, str], base: Path, epoch: str, *, is_compiled: bool) -> Path:
    """Build the last commit once. Return the folder with the results."""
    tree, out = base / where["folder"], base / f"out-{where['folder']}"
    tree.mkdir()
    archive = base / "commit.tar"
    if not archive.exists():
        output("git", "archive", "--format=tar", f"--output={archive}", "HEAD")
    with tarfile.open(archive) as tar:
        tar.extractall(tree, filter="tar")
    env = {name: value for name, value in os.environ.items() if not name.startswith("STANIEL_")}
    env |= {**where, "SOURCE_DATE_EPOCH": epoch}
    hatchling = [sys.executable, "-m", "hatchling", "build", "-d", str(out)]
    mask = int(where["umask"], 8)
    for command, more in ((hatchling, PLAIN), ([*hatchling, "-t", "wheel"], COMPILED))[: 1 + is_compiled]:
        ran = subprocess.run(command, cwd=tree, env=env | more, umask=mask, capture_output=True, text=True)
        if ran.returncode != 0:
            raise SystemExit(f"{' '.join(command)}: {ran.stdout}{ran.stderr}")
    return out


def members(path: Path) -> dict[str, str]:
    """Return a hash of the content and metadata of each file in an archive."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            return {
                entry.filename: hashlib.sha256(
                    repr(entry).encode() + str(entry.date_time).encode() + wheel.read(entry)
                ).hexdigest()
                for entry in wheel.infolist()
            }
    with tarfile.open(path) as tar:
        return {
            entry.name: hashlib.sha256(repr(sorted(entry.get_info().items(), key=str)).encode()).hexdigest()
            for entry in tar
        }


def differences(first: Path, second: Path) -> list[str]:
    """Return the differences between two folders of archives; empty if they are the same."""
    names = sorted({path.name for folder in (first, second) for path in folder.iterdir()})
    found = []
    for name in names:
        one, other = first / name, second / name
        if not (one.exists() and other.exists()):
            found.append(f"{name}: made once only")
        elif one.read_bytes() != other.read_bytes():
            left, right = members(one), members(other)
            unlike = [member for member in left | right if left.get(member) != right.get(member)]
            found.append(f"{name}: {', '.join(unlike[:5]) or 'the archive itself'}, {len(unlike)} in all")
    return found


def is_of_a_release(path: Path) -> bool:
    """Return True if a release makes a file of this name: an older one is replaced, all other files stay."""
    name = path.name
    return path.is_file() and (
        name in ("LICENSES.md", "SHA256SUMS")
        or (name.startswith("staniel-") and name.endswith((".whl", ".tar.gz", ".cdx.json")))
        or (name.startswith("requirements-") and name.endswith(".txt"))
    )


def release(target: Path, *, is_compiled: bool) -> list[Path]:
    """Fill `target`. Raises SystemExit if the two builds differ."""
    if output("git", "status", "--porcelain"):
        print("release: of the last commit; what is changed and not committed is not in it", file=sys.stderr)
    epoch = output("git", "log", "-1", "--format=%ct")
    with tempfile.TemporaryDirectory() as folder:
        first, second = (build(where, Path(folder), epoch, is_compiled=is_compiled) for where in TWO)
        if unlike := differences(first, second):
            raise SystemExit("release: built twice, and not the same: " + "; ".join(unlike))
        target.mkdir(parents=True, exist_ok=True)
        for path in target.iterdir():
            if is_of_a_release(path):
                path.unlink()
        for path in first.iterdir():
            shutil.copy(path, target)
        supply = [sys.executable, str(ROOT / "packaging" / "supply.py"), "sbom"]
        env = {**os.environ, "SOURCE_DATE_EPOCH": epoch}
        sbom = subprocess.run(supply, env=env, check=True, capture_output=True, text=True).stdout
    (sdist,) = target.glob("*.tar.gz")
    (target / f"{sdist.name.removesuffix('.tar.gz')}.cdx.json").write_text(sbom, "utf-8")
    shutil.copy(ROOT / "packaging" / "LICENSES.md", target)
    for path in (ROOT / "packaging" / "requirements").glob("*.txt"):
        shutil.copy(path, target / f"requirements-{path.name}")
    made = sorted(path for path in target.iterdir() if is_of_a_release(path))
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in made]
    (target / "SHA256SUMS").write_text("".join(sums), "utf-8")
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pure", action="store_true", help="without the compiled wheel, which takes minutes")
    parser.add_argument("--to", type=Path, default=ROOT / "dist", help="the folder; an older release in it is replaced")
    chosen = parser.parse_args()
    made = release(chosen.to, is_compiled=not chosen.pure)
    print(f"built twice, the same both times: {', '.join(path.name for path in made)}")


if __name__ == "__main__":
    main()
