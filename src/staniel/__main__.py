"""`python -m staniel`: the same as the command `staniel`."""

from __future__ import annotations

from staniel.server.__main__ import main

if __name__ == "__main__":
    main()
