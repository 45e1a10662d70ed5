"""Where the clients live that this environment's pip cannot bring: `make test` leaves their tests out without them.

.foreign/node      npm install --prefix
.foreign/python    an environment with PyPI's memcache, whose module has the name of python-memcached's
"""

from __future__ import annotations

from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"
FOREIGN = Path(__file__).parents[2] / ".foreign"
NODE_MODULES = FOREIGN / "node" / "node_modules"
META_PYTHON = str(FOREIGN / "python" / "bin" / "python")
