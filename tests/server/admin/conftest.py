"""An operator of the server that a file of tests starts with its own settings."""

from __future__ import annotations

import pytest

from tests.server.admin.asking import Operator
from tests.support.process import Server


@pytest.fixture
def operator(server: Server) -> Operator:
    return Operator(server.second_port)
