"""The capture of a terminal in docs/pictures/first-minutes.txt shows what the tutorial says, and can be taken again."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.docs.first_minutes import CAPTURE, INSTALLATION, TUTORIAL, take
from tests.support.transcripts import Document


def shows_the_tutorial(shown: str) -> None:
    document = Document(TUTORIAL)
    lines = iter(shown.splitlines())
    missing = [command for command in document.commands if f"$ {command}" not in lines]  # in their order
    assert missing == [], shown
    assert document.missing_in(shown) == [], shown
    for text in document.files.values():
        assert text.replace(" ", "") in shown.replace(" ", "")


def test_the_capture_shows_what_the_tutorial_says_now() -> None:
    shown = CAPTURE.read_text("utf-8")
    shows_the_tutorial(shown)
    assert all(f"$ {command.replace('CHECKOUT', './staniel')}" in shown.splitlines() for command in INSTALLATION)


@pytest.mark.slow
def test_the_capture_can_be_taken_again(tmp_path: Path) -> None:
    shows_the_tutorial(take(tmp_path, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}"))
