"""One Spark session for all tests of this folder, with little memory, started by the first that asks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import pipeline
from pipeline.sessions import close


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    warehouse = tmp_path_factory.mktemp("warehouse")
    session = pipeline.session("local[2]", spark__sql__warehouse__dir=str(warehouse), spark__sql__shuffle__partitions=2)
    yield session
    close(session)
