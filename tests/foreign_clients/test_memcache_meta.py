"""PyPI's memcache 0.14: meta commands and nothing else, in an environment of its own."""

from __future__ import annotations

import pytest

from tests.foreign_clients.foreign import META_PYTHON
from tests.foreign_clients.test_other_languages import said
from tests.support.process import Server


@pytest.mark.programs(META_PYTHON)
def test_it_puts_takes_reads_reliably_and_gets_its_types_back(server: Server) -> None:
    reliable = ["one", "two", "nothing", "two", "three", "nothing", "nothing"]
    typed = ["42", "b'bytes'", "{'answer': [42]}"]
    ending = ["True", "refused", "last", "nothing"]
    assert said(server, META_PYTHON, "meta_client.py") == reliable + typed + ending
