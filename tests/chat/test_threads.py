"""Threads that are kept, and a computer that refuses new ones."""

import threading
from typing import Any

import pytest

from kvchat.chat.threads import MOST_IDLE, Threads
from kvchat.errors import RequestError

NAME = "test-threads"


def alive() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == NAME]


def run_and_wait(threads: Threads) -> int:
    """The thread that ran it."""
    found: list[int] = []
    ended = threading.Event()

    def job() -> None:
        found.append(threading.get_ident())
        ended.set()

    threads.run(job)
    assert ended.wait(30)
    return found[0]


def settled(threads: Threads, num_idle: int) -> None:
    pause = threading.Event()
    while threads._num_idle != num_idle:
        pause.wait(0.005)


def refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)


def test_a_thread_that_is_through_runs_the_next() -> None:
    threads = Threads(NAME)
    first = run_and_wait(threads)
    settled(threads, 1)
    assert run_and_wait(threads) == first


def test_none_waits_for_another_and_few_are_kept() -> None:
    threads = Threads(NAME)
    go, count = threading.Event(), MOST_IDLE + 3
    inside = threading.Barrier(count + 1)

    def job() -> None:
        inside.wait(30)
        go.wait(30)

    before = len(alive())
    for _ in range(count):
        threads.run(job)
    inside.wait(30)  # all of them run at once
    go.set()
    settled(threads, MOST_IDLE)
    pause = threading.Event()
    while len(alive()) > before + MOST_IDLE:
        pause.wait(0.005)
    assert threads._num_threads == MOST_IDLE


def test_closed_it_keeps_none() -> None:
    threads = Threads(NAME)
    before = len(alive())
    for _ in range(2):
        run_and_wait(threads)
    settled(threads, 1)
    threads.close()
    pause = threading.Event()
    while len(alive()) >= before + 1 or threads._num_threads:
        pause.wait(0.005)
    assert run_and_wait(threads) != threading.get_ident()  # one that comes late is run


def test_where_the_computer_refuses_one_the_job_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = Threads(NAME)
    held, ended, order = threading.Event(), threading.Event(), []

    def first() -> None:
        held.wait(30)
        order.append("first")

    def second() -> None:
        order.append("second")
        ended.set()

    threads.run(first)
    refuse(monkeypatch)
    threads.run(second)
    assert order == []
    held.set()
    assert ended.wait(30)
    assert order == ["first", "second"]
    settled(threads, 1)


def test_without_any_thread_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch)
    with pytest.raises(RequestError) as found:
        Threads(NAME).run(lambda: None)
    assert found.value.code == "no_thread"
