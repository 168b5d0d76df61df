"""Frames over real pipes."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from scheduler.cluster.frames import BadFrame, Channel


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    """Yield two channels that reach each other."""
    one, other = os.pipe(), os.pipe()
    channels = Channel(one[0], other[1]), Channel(other[0], one[1])
    yield channels
    for channel in channels:
        channel.close()
    for fd in (*one, *other):
        os.close(fd)


def test_messages_arrive_whole_and_in_order(ends: tuple[Channel, Channel]) -> None:
    head, agent = ends
    head.send({"a": 1})
    head.send({"b": ["\n", "é"]})
    assert agent.receive() == [{"a": 1}, {"b": ["\n", "é"]}]
    assert agent.receive() == []


def test_a_message_that_is_longer_than_the_pipe_arrives_in_parts_and_blocks_neither_end(
    ends: tuple[Channel, Channel],
) -> None:
    head, agent = ends
    head.send({"text": "x" * (1 << 20)})
    assert head.unsent
    received = []
    while not received:
        received = agent.receive()
        head.push()
    assert len(received[0]["text"]) == 1 << 20
    assert not head.unsent


def test_kept_messages_come_again_before_newer_ones(ends: tuple[Channel, Channel]) -> None:
    head, agent = ends
    agent.keep([{"first": 1}])
    head.send({"second": 2})
    assert agent.receive() == [{"first": 1}, {"second": 2}]


def test_a_line_that_is_no_object_is_refused_with_its_text(ends: tuple[Channel, Channel]) -> None:
    _, agent = ends
    os.write(ends[0]._write, b"Welcome to gpu1\n")
    with pytest.raises(BadFrame, match="Welcome to gpu1"):
        agent.receive()


def test_a_channel_has_ended_once_the_other_end_is_closed() -> None:
    ours, theirs = os.pipe(), os.pipe()
    channel = Channel(ours[0], theirs[1])
    os.close(ours[1])
    assert channel.receive() == []
    assert channel.ended
    channel.close()
    for fd in (ours[0], *theirs):
        os.close(fd)
