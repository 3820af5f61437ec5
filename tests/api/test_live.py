"""Frames for who looks: often while something changes, seldom when idle, made once for all."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.api.conftest import Serve, Served


@contextmanager
def looking(served: Served, query: str = "", **options) -> Iterator[Iterator[tuple[int, dict]]]:
    """The frames as they come, each with its `id`."""
    with httpx.stream("GET", f"{served.url}/api/live{query}", timeout=10, **options) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield _frames(answer.iter_lines())


def _frames(lines: Iterator[str]) -> Iterator[tuple[int, dict]]:
    number = None
    for line in lines:
        if line.startswith("id: "):
            number = int(line[4:])
        if line.startswith("data: "):
            yield number, json.loads(line[6:])


def frames_within(served: Served, seconds: float, query: str = "") -> list[tuple[float, dict]]:
    found = []
    until_s = time.monotonic() + seconds
    with looking(served, query) as frames:
        for _, frame in frames:
            found.append((time.monotonic(), frame))
            if time.monotonic() > until_s:
                return found
    return found


def test_the_first_frame_comes_at_once_then_one_a_second(serve: Serve):
    served = serve()
    begun_s = time.monotonic()
    found = frames_within(served, 1.5)
    assert found[0][0] - begun_s < 0.9
    assert 2 <= len(found) <= 3
    assert found[0][1]["type"] == "frame"
    assert found[0][1]["ledger"] == []


def test_at_most_ten_a_second_while_an_answer_is_made(serve: Serve):
    """Every token changes the frame here; the first look may fall anywhere in the second."""
    served = serve(token_s=0.005)
    chat = served.conversations.new_chat()
    count = iter(range(10**9))
    original = served.conversations.frame
    served.conversations.frame = lambda chat=None: {**original(chat), "now": next(count)}
    served.conversations.ask(chat, "count to 1000")
    times = [at_s for at_s, _ in frames_within(served, 2.0, f"?chat={chat}")]
    served.conversations.stop(chat)
    assert 8 <= len(times) <= 22
    for begin, end in zip(times, times[10:], strict=False):
        assert end - begin > 0.85


def test_nothing_new_is_not_sent_even_while_an_answer_is_made(serve: Serve):
    served = serve(token_s=5)
    chat = served.conversations.new_chat()
    served.conversations.ask(chat, "count to 100")
    found = frames_within(served, 1.8, f"?chat={chat}")
    served.conversations.stop(chat)
    assert {frame["runtime"]["stage"] for _, frame in found} == {"decode"}
    assert len(found) <= 3


def test_the_end_of_an_answer_is_seen_at_once(serve: Serve):
    """Not only with the next frame of the idle second."""
    served = serve(token_s=0.02)
    chat = served.conversations.new_chat()
    answer = served.conversations.ask(chat, "count to 40")
    with looking(served, f"?chat={chat}") as frames:
        while answer.status != "done":
            answer.wait_change(10**9, 0.01)
        ended_s = time.monotonic()
        stages = (frame["runtime"]["stage"] for _, frame in frames)
        assert "ready" in stages
        assert time.monotonic() - ended_s < 0.7


def test_one_frame_serves_all_who_look(serve: Serve):
    served = serve()
    chat = served.conversations.new_chat()
    looks = [
        threading.Thread(target=frames_within, args=(served, 1.2, f"?chat={chat}"))
        for _ in range(8)
    ]
    for look in looks:
        look.start()
    for look in looks:
        look.join()
    assert served.conversations.num_frames <= 5  # not eight times two


def test_nobody_looking_costs_nothing(serve: Serve):
    served = serve()
    frames_within(served, 0.5)
    time.sleep(0.3)
    before = served.conversations.num_frames
    time.sleep(1.2)
    assert served.conversations.num_frames == before


def test_each_chat_has_its_own_frames(serve: Serve):
    served = serve()
    one, other = served.conversations.new_chat(), served.conversations.new_chat()
    served.conversations.add_document(one, Path("a.pdf"), "a.pdf")
    with looking(served, f"?chat={one}") as of_one, looking(served, f"?chat={other}") as of_other:
        assert [d["name"] for d in next(of_one)[1]["documents"]] == ["a.pdf"]
        assert next(of_other)[1]["documents"] == []


# The ledger


def _entries(frames: Iterator[tuple[int, dict]], wanted: int) -> list[int]:
    found: list[int] = []
    while len(found) < wanted:
        found += [entry["number"] for entry in next(frames)[1]["ledger"]]
    return found


def test_ledger_entries_come_once_and_in_order(serve: Serve):
    served = serve()
    chat = served.conversations.new_chat()
    served.conversations.note(chat, "drop_idle", blocks=3)
    with looking(served, f"?chat={chat}") as frames:
        number, first = next(frames)
        assert (number, [one["code"] for one in first["ledger"]]) == (1, ["drop_idle"])
        served.conversations.note(chat, "truncate_turns", turns=[1])
        served.conversations.note(chat, "truncate_turns", turns=[2])
        assert _entries(frames, 2) == [2, 3]


def test_who_comes_back_misses_no_entry_and_gets_none_twice(serve: Serve):
    served = serve()
    chat = served.conversations.new_chat()
    for _ in range(3):
        served.conversations.note(chat, "drop_idle", blocks=1)
    with looking(served, f"?chat={chat}", headers={"last-event-id": "2"}) as frames:
        assert _entries(frames, 1) == [3]
    with looking(served, f"?chat={chat}&since=1") as frames:
        assert _entries(frames, 2) == [2, 3]


@pytest.mark.parametrize("number", ["99", "-1", "x", "9" * 5000, "٣"])
def test_numbers_that_cannot_be_mean_from_the_beginning(serve: Serve, number: str):
    served = serve()
    chat = served.conversations.new_chat()
    served.conversations.note(chat, "drop_idle", blocks=1)
    with looking(served, f"?chat={chat}&since={number}") as frames:
        assert _entries(frames, 1) == [1]


# Ends


def test_a_chat_that_is_not_there(serve: Serve):
    answer = httpx.get(f"{serve().url}/api/live?chat=nowhere")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "chat_gone"


def test_a_deleted_chat_ends_its_stream(serve: Serve):
    served = serve()
    chat = served.conversations.new_chat()
    with looking(served, f"?chat={chat}") as frames:
        next(frames)
        served.conversations.delete(chat)
        assert list(frames)[-1][1] == {}  # `event: gone`


def test_a_head_request_does_not_hang(serve: Serve):
    assert httpx.head(f"{serve().url}/api/live", timeout=3).status_code == 200


def test_looking_is_cheap(serve: Serve):
    """Four idle tabs; measured 0.9 % of a core with a stand-in. Twenty times that is a fault."""
    served = serve()
    looks = [threading.Thread(target=frames_within, args=(served, 2.0)) for _ in range(4)]
    for look in looks:
        look.start()
    time.sleep(0.5)
    begun_cpu_s, begun_s = time.process_time(), time.monotonic()
    time.sleep(1.5)
    share = (time.process_time() - begun_cpu_s) / (time.monotonic() - begun_s)
    for look in looks:
        look.join()
    assert share < 0.2
