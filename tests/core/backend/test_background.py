"""Background work gives way, and nothing else does."""

import os
import subprocess
import sys
import threading
import time

import pytest
from phyla.backend.background import BACKGROUND_NICE, LAST_NICE, in_background

PROGRAM = """
import os
from phyla.backend.background import give_way
give_way()
give_way()
print(os.getpriority(os.PRIO_PROCESS, 0))
"""


def test_its_result_and_its_errors_come_back():
    assert in_background(lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        in_background(lambda: 1 // 0)


def test_it_runs_on_a_thread_of_its_own():
    assert in_background(threading.get_ident) != threading.get_ident()


def test_no_other_thread_gives_way():
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    in_background(lambda: None)
    assert os.getpriority(os.PRIO_PROCESS, 0) == mine


def test_a_process_gives_way_once():
    finished = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert int(finished.stdout) == max(BACKGROUND_NICE, os.getpriority(os.PRIO_PROCESS, 0))


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own elsewhere")
@pytest.mark.parametrize("is_waited_for", [True, False])
def test_what_isnt_quick_goes_last(is_waited_for):
    def priority_at_last():
        task = threading.get_native_id()
        while os.getpriority(os.PRIO_PROCESS, task) < LAST_NICE or (os.sched_getscheduler(task) != policy):
            time.sleep(0.001)
        return True

    policy = os.sched_getscheduler(0) if is_waited_for else os.SCHED_IDLE
    assert in_background(priority_at_last, quick_seconds=0, is_waited_for=is_waited_for)
