"""Events reach listeners off the posting thread; what a listener raises is logged and harms nobody."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest
from phyla.engine import EngineStarted, RequestFinished, StepFinished
from phyla.hookspecs import hookimpl
from phyla.plugins import PluginManager
from phyla.plugins.declared import Declared
from phyla.plugins.events import EventDelivery

STARTED = EngineStarted("org/model", "toy", 0.5, 1000)
STEP = StepFinished("decode", 1, 1, 0.01)
FINISHED = RequestFinished("r1", "stop", None)


class Listening:
    """Writes down what it hears, and on which thread."""

    phyla_api = 1

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.threads: set[int] = set()

    def _hear(self, record: Any) -> None:
        self.heard.append(record)
        self.threads.add(threading.get_ident())

    @hookimpl
    def phyla_engine_started(self, record: EngineStarted) -> None:
        self._hear(record)

    @hookimpl
    def phyla_step_finished(self, record: StepFinished) -> None:
        self._hear(record)

    @hookimpl
    def phyla_request_finished(self, record: RequestFinished) -> None:
        self._hear(record)


class Raising:
    """Fails at every step."""

    phyla_api = 1

    @hookimpl
    def phyla_step_finished(self, record: StepFinished) -> None:
        raise ValueError("no steps for me")


def test_records_arrive_in_order_and_on_another_thread() -> None:
    listener = Listening()
    manager = PluginManager()
    manager.register("listening", listener)
    manager.engine_started(STARTED)
    manager.step_finished(STEP)
    manager.request_finished(FINISHED)
    manager.close()
    assert listener.heard == [STARTED, STEP, FINISHED]
    assert threading.get_ident() not in listener.threads


def test_a_listener_that_raises_is_logged_and_the_others_still_hear(caplog: pytest.LogCaptureFixture) -> None:
    listener = Listening()
    manager = PluginManager()
    manager.register("broken", Raising())
    manager.register("listening", listener)
    with caplog.at_level(logging.ERROR):
        manager.step_finished(STEP)
        manager.step_finished(STEP)
        manager.close()
    assert listener.heard == [STEP, STEP]
    assert "Plugin 'broken': its phyla_step_finished raised" in caplog.text
    assert "no steps for me" in caplog.text


def test_nothing_runs_when_nobody_listens() -> None:
    before = threading.active_count()
    manager = PluginManager()
    manager.step_finished(STEP)
    assert threading.active_count() == before
    manager.close()


def test_closing_twice_is_safe_and_late_records_pass() -> None:
    listener = Listening()
    manager = PluginManager()
    manager.register("listening", listener)
    manager.step_finished(STEP)
    manager.close()
    manager.close()
    manager.step_finished(STEP)
    assert listener.heard == [STEP]


def test_a_slow_listener_loses_records_instead_of_stopping_the_engine() -> None:
    entered, leave = threading.Event(), threading.Event()
    heard: list[Any] = []

    def slow(record: Any) -> None:
        heard.append(record)
        entered.set()
        leave.wait()

    delivery = EventDelivery({"phyla_step_finished": [Declared("slow", slow)]}, max_waiting=1)
    delivery.post("phyla_step_finished", 1)
    entered.wait()
    delivery.post("phyla_step_finished", 2)
    delivery.post("phyla_step_finished", 3)
    assert delivery.num_dropped == 1
    leave.set()
    delivery.close()
    assert heard == [1, 2]
