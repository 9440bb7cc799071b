"""What was drawn, read where a device writes it: here a thread writes, some time after the dispatch."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest
from phyla.engine import early_output
from phyla.engine.early_output import AwaitedReadouts, PostedReadouts, Waits, cuda_readouts
from phyla.errors import BackendError, GenerationFailed
from phyla.sampling.sampler import NO_TOKEN, Chosen

NOT_A_NUMBER = float("nan")


def chosen_of(tokens: Sequence[int], evidence: Sequence[float] = (), failures: Sequence[int] = ()) -> Chosen:
    return Chosen(
        tokens=mx.array(list(tokens)),
        logprobs=mx.zeros((len(tokens), 1)),
        evidence=mx.array(list(evidence) or [0.0] * len(tokens))[:, None],
        failures={index: GenerationFailed("this one") for index in failures},
    )


class Host:
    """Memory that no driver is needed for."""

    def __init__(self, size: int = 16) -> None:
        self.numbers = np.zeros(size, dtype=np.int32)
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


class Device:
    """Writes what came of draws once it is told to go on, as a kernel would: it knows of no failures."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._goes_on = threading.Event()
        self._writing: list[threading.Thread] = []

    def post(self, chosen: Chosen) -> mx.array:
        evidence = np.array(chosen.evidence)[:, 0]
        numbers = np.where(np.isfinite(evidence), np.array(chosen.tokens) + 1, 0)
        self._writing.append(threading.Thread(target=self._write, args=[numbers], daemon=True))
        self._writing[-1].start()
        return mx.array([1])

    def go_on(self) -> None:
        self._goes_on.set()

    def _write(self, numbers: npt.NDArray[np.int32]) -> None:
        self._goes_on.wait()
        self._host.numbers[: numbers.size] = numbers

    def join(self) -> None:
        self.go_on()
        for thread in self._writing:
            thread.join()


def patiently(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr(early_output, "PATIENCE_SECONDS", seconds)


@pytest.mark.parametrize("is_posted", [False, True])
def test_tokens_are_those_of_the_draws(is_posted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    patiently(monkeypatch, 60)
    chosen = chosen_of([5, 0, 7, 3], [0.0, 1.5, NOT_A_NUMBER, 2.0], failures=[3])
    host = Host()
    device = Device(host)
    readouts = PostedReadouts(host, device.post) if is_posted else AwaitedReadouts()
    readout = readouts.open(chosen)
    device.go_on()
    assert readout.ids() == chosen.ids() == [5, 0, NO_TOKEN, NO_TOKEN]
    device.join()
    readouts.close()
    assert host.is_closed == is_posted


def test_it_waits_for_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    patiently(monkeypatch, 60)
    host = Host()
    posts = {5: (0, 6), 10: (2, 8), 20: (1, 7)}
    readout = PostedReadouts(host, lambda chosen: mx.array([1])).open(chosen_of([5, 6, 7]))
    looks = itertools.count(1)

    def looking(*_: object) -> None:
        place, number = posts.get(next(looks), (0, host.numbers[0]))
        host.numbers[place] = number

    monkeypatch.setattr(early_output, "select", looking)
    assert readout.ids() == [5, 6, 7]
    assert readout.was_seen
    assert next(looks) == 21


@pytest.mark.parametrize(
    ("waits", "slept"),
    [
        ([], []),
        ([0.01], []),
        ([0.003, 0.0006], [0.0003]),
        ([0.0006, 0.003], [0.0003]),
        ([0.0006, 0.0003], []),
        ([0.04, 0.03], [0.002]),
        ([0.0001, 0.002, 0.003], [0.001]),
    ],
)
def test_it_sleeps_through_half_of_what_the_last_two_waits_took(
    waits: Sequence[float], slept: Sequence[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[float] = []
    monkeypatch.setattr(early_output, "time", SimpleNamespace(sleep=heard.append))
    lately = Waits()
    for seconds in waits:
        lately.note(seconds)
    lately.sleep()
    assert heard == pytest.approx(slept)


def test_every_wait_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    patiently(monkeypatch, 60)
    noted: list[float] = []
    monkeypatch.setattr(Waits, "note", lambda self, seconds: noted.append(seconds))
    monkeypatch.setattr(Waits, "sleep", lambda self: noted.append(-1.0))
    device = Device(host := Host())
    device.go_on()
    readouts = PostedReadouts(host, device.post)
    for _ in range(2):
        readouts.open(chosen_of([1])).ids()
    device.join()
    assert noted[::2] == [-1.0, -1.0]
    assert all(0 <= seconds < 60 for seconds in noted[1::2])


def test_after_a_while_it_waits_as_for_any_array(monkeypatch: pytest.MonkeyPatch) -> None:
    patiently(monkeypatch, 0.001)
    host = Host()
    device = Device(host)
    readout = PostedReadouts(host, device.post).open(chosen_of([5, 6], failures=[1]))
    assert readout.ids() == [5, NO_TOKEN]
    assert not readout.was_seen
    device.join()


def test_what_failed_has_failed_one_round_only(monkeypatch: pytest.MonkeyPatch) -> None:
    patiently(monkeypatch, 60)
    host = Host()
    device = Device(host)
    device.go_on()
    readouts = PostedReadouts(host, device.post)
    readouts.open(chosen_of([1]))
    device.join()
    evaluate = mx.eval

    def failing(*arrays: object) -> None:
        raise RuntimeError("the device is out of memory")

    monkeypatch.setattr(mx, "eval", failing)
    readout = readouts.open(chosen_of([2]))
    readouts.close()
    assert host.is_closed
    monkeypatch.setattr(mx, "eval", evaluate)
    assert readout.ids() == [2]


def test_what_nobody_read_is_out_of_the_way_before_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window that is computed again: its tokens are on their way to where the next ones are looked for."""
    host = Host()
    device = Device(host)
    device.go_on()
    done: list[str] = []
    evaluate: Callable[..., None] = mx.eval
    monkeypatch.setattr(mx, "eval", lambda *arrays: done.append("waited") or evaluate(*arrays))

    def post(chosen: Chosen) -> mx.array:
        done.append("posted")
        return device.post(chosen)

    patiently(monkeypatch, 60)
    readouts = PostedReadouts(host, post)
    readouts.open(chosen_of([1, 2, 3]))
    device.join()
    assert readouts.open(chosen_of([8, 9])).ids() == [8, 9]
    readouts.close()
    assert done == ["posted", "waited", "posted", "waited"]
    device.join()


def test_a_device_writes_what_the_host_waits_for_and_without_one_it_says_so() -> None:
    chosen = chosen_of([5, 0, 7, 3], [0.0, 1.5, NOT_A_NUMBER, 2.0], failures=[3])
    if not mx.cuda.is_available():
        with pytest.raises(BackendError, match="CUDA"):
            cuda_readouts()
        return
    readouts = cuda_readouts()
    readout = readouts.open(chosen)
    mx.async_eval(readout.arrays)  # type: ignore[no-untyped-call]
    assert readout.ids() == chosen.ids()
    assert readout.was_seen
    readouts.close()
