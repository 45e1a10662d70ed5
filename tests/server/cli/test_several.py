"""Commands about several queues, and about the items that meet terms: what they ask first, and what they do."""

from __future__ import annotations

import json

import pytest

from tests.server.cli.test_live import fill, items, on_terminal, refuses, run, say, server
from tests.support.process import Server

__all__ = ["server"]


@pytest.fixture
def mails(server: Server) -> Server:
    for queue, count in (("mail-a", 3), ("mail-b", 2), ("web", 4)):
        fill(server, queue, count)
    return server


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["purge", "mail*"], "remove 5 items of 2 queues (mail-a 3, mail-b 2)"),
        (["purge", "web", "mail-?"], "remove 9 items of 3 queues (web 4, mail-a 3, mail-b 2)"),
        (["move", "mail*", "all"], "move 5 items of 2 queues (mail-a 3, mail-b 2) to all"),
        (["move", "mail*", "web", "all", "-n", "2"], "move 6 items of 3 queues (mail-a 2, mail-b 2, web 2) to all"),
        (["redrive", "mail*", "--to", "all"], "move 5 items of 2 queues (mail-a 3, mail-b 2) to all"),
        (["delete", "mail*"], "delete 2 queues (mail-a 3, mail-b 2) with 5 items (5 B)"),
        (["purge", "mail*", "--where", "regex~[12]"], "remove 3 items of 2 queues (mail-a 2, mail-b 1)"),
        (["move", "web", "all", "--where", "text~3"], "move 1 item of web to all"),
    ],
)
def test_several_queues_are_counted_before_the_question(mails: Server, arguments: list[str], what: str) -> None:
    before = [items(mails, queue) for queue in ("mail-a", "mail-b", "web")]
    assert refuses(run(mails, *arguments), 2, what)
    code, seen = on_terminal(mails, b"n\n", *arguments)
    assert code == 1 and what in " ".join(seen.split())
    assert [items(mails, queue) for queue in ("mail-a", "mail-b", "web")] == before
    code, seen = on_terminal(mails, b"y\n", *arguments)
    assert code == 0, seen
    assert [items(mails, queue) for queue in ("mail-a", "mail-b", "web")] != before


def test_what_several_queues_answer_is_told_each(mails: Server) -> None:
    lines = say(mails, "purge", "mail*", "-y").splitlines()
    assert [line for line in lines if line.startswith("removed")] == [
        "removed 3 items from mail-a",
        "removed 2 items from mail-b",
    ]
    numbers = [line.split()[-1] for line in lines if line.startswith("until")]
    assert [say(mails, "undo", number) for number in numbers] == [
        "returned 3 items to mail-a\n",
        "returned 2 items to mail-b\n",
    ]
    assert say(mails, "pause", "mail*", "--gets") == (
        "mail-a: gets paused, puts served\nmail-b: gets paused, puts served\n"
    )
    assert say(mails, "resume", "mail-a", "mail-b") == (
        "mail-a: gets served, puts served\nmail-b: gets served, puts served\n"
    )
    found = json.loads(say(mails, "move", "mail*", "mail-b", "-y", "--json"))
    assert found["moved"] == 3 and items(mails, "mail-b") == 5, "a pattern does not stand for the target"
    found = json.loads(say(mails, "purge", "mail-a", "web", "-y", "--json"))
    assert [(each["queue"], each["purged"]) for each in found] == [("mail-a", 0), ("web", 4)]


def test_one_queue_that_refuses_does_not_keep_the_others_back(mails: Server) -> None:
    ended = run(mails, "pause", "mail-a", "none", "web")
    assert ended.returncode == 1 and "Error: none: there is no queue none" in ended.stderr
    assert ended.stdout.count("gets paused") == 2
    assert refuses(run(mails, "purge", "post*", "-y"), 1, "no queue name fits post*")
    assert refuses(run(mails, "move", "web", "web", "-y"), 1, "the two queues are the same")


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["purge", "mail-a", "none", "web", "--where", "regex~[12]"], "remove 4 items of 2 queues (mail-a 2, web 2)"),
        (["purge", "none", "mail*", "--where", "text~2"], "remove 1 item of 2 queues (mail-a 1, mail-b 0)"),
        (["move", "web", "none", "all", "--where", "text~3"], "move 1 item of web"),
        (["delete", "web", "none"], "delete 1 queue (web 4) with 4 items (4 B)"),
    ],
)
def test_one_queue_that_cannot_be_counted_keeps_no_other_back(mails: Server, arguments: list[str], what: str) -> None:
    refused = run(mails, *arguments)
    assert refused.returncode == 2 and f"{what}, but none of none (there is no queue none)" in refused.stderr
    ended = run(mails, *arguments, "-y")
    assert ended.returncode == 1 and ended.stderr == "Error: none: there is no queue none\n"
    assert "none" not in ended.stdout and ended.stdout.split()[0] in ("removed", "moved", "deleted")


def test_json_about_several_queues_tells_which_could_not_be_counted(mails: Server) -> None:
    told = run(mails, "purge", "web", "none", "--where", "text~1", "-y", "--json")
    done, failed = json.loads(told.stdout)
    assert told.returncode == 1 and (done["queue"], done["purged"]) == ("web", 1)
    assert failed == {"queue": "none", "error": "there is no queue none"}


def test_if_no_queue_can_be_counted_each_is_told(mails: Server) -> None:
    ended = run(mails, "move", "none", "nil", "all", "-y")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == "Error: none: there is no queue none\nError: nil: there is no queue nil\n"


def test_a_queue_whose_name_is_the_pattern_is_that_one(mails: Server) -> None:
    fill(mails, "mail*", 1)
    assert say(mails, "purge", "mail*", "-y").startswith("removed 1 item from mail*\n")
    assert items(mails, "mail-a") == 3


def test_items_are_found_and_taken_by_their_ids(mails: Server) -> None:
    shown = say(mails, "find", "web", "--where", "regex~[13]").splitlines()
    assert [line.split()[0] for line in shown] == ["OFFSET", "1", "3"]
    assert shown[0].split() == ["OFFSET", "ID", "AGE", "BYTES", "TRIES", "DATA"]
    ids = ",".join(line.split()[1] for line in shown[1:])
    assert run(mails, "find", "web", "-n", "0").stderr == "0 of 4 items found in 4\n"
    assert say(mails, "move", "web", "kept", "--where", f"id={ids}", "-y").startswith(
        "moved 2 items from web to kept\n"
    )
    assert say(mails, "get", "kept", "-n", "2") == "1\n3\n"
    assert say(mails, "get", "web", "-n", "2") == "0\n2\n"
    found = json.loads(say(mails, "find", "mail-a", "--where", "position=1-2", "--json"))
    assert [each["data"] for each in found["items"]] == ["1", "2"]
    told = say(mails, "purge", "mail-a", "--where", "position=1", "-y").splitlines()
    assert told[0] == "removed 1 item from mail-a"
    assert say(mails, "get", "mail-a", "-n", "2") == "0\n2\n"


def test_items_are_found_in_several_queues(mails: Server) -> None:
    found = run(mails, "find", "mail*", "web", "--where", "regex~[12]$", "-n", "1")
    heads, *rows = found.stdout.splitlines()
    assert found.returncode == 0 and heads.split()[:3] == ["QUEUE", "OFFSET", "ID"]
    assert [row.split()[0] for row in rows] == ["mail-a", "mail-b", "web"]
    assert found.stderr.splitlines() == [
        "mail-a: 1 of 2 items found in 3",
        "mail-b: 1 of 1 item found in 2",
        "web: 1 of 2 items found in 4",
    ]
    answers = json.loads(say(mails, "find", "mail*", "--json"))
    assert [(each["queue"], each["found"]) for each in answers] == [("mail-a", 3), ("mail-b", 2)]
    partly = run(mails, "find", "mail-a", "none", "--where", "text~1")
    assert partly.returncode == 1 and len(partly.stdout.splitlines()) == 2
    assert partly.stderr.splitlines()[-1] == "Error: none: there is no queue none"
    assert refuses(run(mails, "find", "nothing*"), 1, "no queue name fits nothing*")


def test_a_pattern_that_matches_the_target_leaves_it_out_and_says_so(mails: Server) -> None:
    what = "move 6 items of 2 queues (mail-b 2, web 4) to mail-a, whose own 3 items stay"
    for command in (["move", "mail*", "web", "mail-a"], ["redrive", "mail*", "web", "--to", "mail-a"]):
        assert refuses(run(mails, *command), 2, f"this would {what}")
    code, seen = on_terminal(mails, b"y\n", "move", "mail*", "web", "mail-a")
    assert code == 0 and f"This will {what}. Go on?" in " ".join(seen.split())
    assert items(mails, "mail-a") == 9
    assert refuses(run(mails, "move", "*", "mail-new"), 2, "to mail-new, and there is no terminal")


def test_a_target_among_the_sources_is_refused_before_anything_moves(mails: Server) -> None:
    assert refuses(run(mails, "move", "we*", "web", "-y"), 1, "no queue but the target web fits we*")
    assert refuses(run(mails, "move", "nothing*", "web", "-y"), 1, "no queue name fits nothing*")
    wanted = "mail-a is a source and the target: leave it out of the sources"
    for sources in (("mail-b", "mail-a"), ("mail*", "mail-a")):
        assert refuses(run(mails, "move", *sources, "mail-a", "-y"), 1, wanted)
    assert [items(mails, queue) for queue in ("mail-a", "mail-b", "web")] == [3, 2, 4]


def test_the_limits_of_find_are_told_by_its_options(mails: Server) -> None:
    for arguments, why in (
        (("-n", "1001"), "Invalid value for '--count' / '-n': 1001 is not in the range 0<=x<=1000."),
        (("--bytes", "2000000"), "Invalid value for '--bytes': 2000000 is not in the range 0<=x<=1048576."),
        (("-n", "1000", "--bytes", "2000"),
         "--count times --bytes is at most 1,048,576: ask for fewer items or for less of each"),
    ):  # fmt: skip
        ended = run(mails, "find", "web", *arguments)
        assert (ended.returncode, ended.stderr.splitlines()[-1]) == (2, f"Error: {why}")


def test_bad_terms_are_told_in_a_line(mails: Server) -> None:
    assert refuses(run(mails, "find", "web", "--where", "color=red"), 1, "is not a term")
    assert refuses(run(mails, "purge", "web", "--where", "age>x", "-y"), 1, "is not a number with one of the units")
    ended = run(mails, "purge", "web", "--where", "text~1", "--no-undo", "-y")
    assert ended.returncode == 2 and "--no-undo goes with whole queues" in ended.stderr
    assert items(mails, "web") == 4
