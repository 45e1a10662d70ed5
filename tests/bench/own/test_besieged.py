"""An ordinary client beside attacks: a short run of each, the table and the picture."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from staniel.bench.harness.chart import Span
from staniel.bench.own import besieged
from staniel.bench.own.besieged import Sample, Story

SMALL = {attack.name: attack for attack in besieged.attacks(idle_count=50, slow_count=50)}


@pytest.mark.parametrize("name", SMALL)
def test_an_ordinary_client_is_served_right_beside_each_attack(name: str) -> None:
    story = besieged.measured([SMALL[name]], 0.4)
    (span,) = story.spans
    assert span.name == name and 0 < span.start < span.end
    assert any(one.at < span.start for one in story.samples) and any(one.at >= span.start for one in story.samples)


def test_the_table_and_the_picture_tell_rest_from_attack() -> None:
    samples = [Sample(0.1, 1.0), Sample(0.2, 2.0), Sample(1.1, 8.0)]
    story = Story(samples, [Span("garbage", 1.0, 2.0)])
    assert [line.split() for line in besieged.table(story)[1:]] == [
        ["none", "2", "2.00", "2.00", "2.00"],
        ["garbage", "1", "8.00", "8.00", "8.00"],
    ]
    texts = [element.text for element in ElementTree.fromstring(besieged.picture(story)).iter() if element.text]
    assert {"garbage", "half within", "longest", "ms"} <= set(texts)
