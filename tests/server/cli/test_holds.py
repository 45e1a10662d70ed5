"""The commands of retention holds, on a real server that is killed between two of them."""

from __future__ import annotations

import json
from pathlib import Path

from tests.server.cli.test_live import fill, refuses, run, say
from tests.support.process import running

CONFIG = 'queues.mail.journal_format = "libkestrel"\n'


def test_a_hold_keeps_the_file_of_a_deleted_queue_over_a_kill_until_it_is_moved(tmp_path: Path) -> None:
    with running(tmp_path, config=CONFIG) as server:
        assert say(server, "hold", "create", "archive", "--queues", "mail*", "--max-bytes", "100000").strip() == (
            "hold archive of mail*"
        )
        fill(server, "mail", 3)
        say(server, "delete", "mail", "--no-undo", "--yes")
        kept = sorted(path.name for path in (server.spool / ".staniel" / "kept").iterdir())
        assert len(kept) == 1 and kept[0].startswith("archive~mail.")
        server.restart()
        heads, row = say(server, "hold", "list").splitlines()
        assert heads.split() == ["HOLD", "STATE", "FILES", "BYTES", "LIMIT", "MOVED", "QUEUES", "WHY"]
        assert row.split()[:3] == ["archive", "active", "1"] and row.split()[-1] == "mail*"
        (view,) = json.loads(say(server, "hold", "list", "--json"))
        assert view["bytes"] == (server.spool / ".staniel" / "kept" / kept[0]).stat().st_size > 0
        file = kept[0].partition("~")[2]
        assert refuses(run(server, "hold", "move", "archive", "mail.1"), 1, "no sealed file")
        assert "hold archive keeps 0 files" in say(server, "hold", "move", "archive", file)
        assert not list((server.spool / ".staniel" / "kept").iterdir())
        assert refuses(run(server, "hold", "drop", "other", "--yes"), 1, "there is no hold other")
        assert say(server, "hold", "drop", "archive", "--yes").strip() == "dropped archive"
        assert "mail is not the name of a sealed file" in run(server, "hold", "move", "archive", "mail").stderr
