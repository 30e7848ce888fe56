"""Forks at every step of a piece of code, as a thread that is in the middle of it may see them."""

import os
import signal
import sys
from types import ModuleType


def fork_at_every_line(module: ModuleType, act, check) -> list[int]:
    """Call `act` and fork before each line of a module that it comes to; return the exit codes of the children.

    Args:
        module: Whose lines.
        act: What to do.
        check: Called in each child; one that returns ends with 0, one that raises with 1, one that hangs by SIGALRM.
    """
    codes = []

    def before_line(frame, event, _):
        if frame.f_code.co_filename != module.__file__:
            return None
        if event == "line":
            codes.append(_in_child(check))
        return before_line

    sys.settrace(before_line)
    try:
        act()
    finally:
        sys.settrace(None)
    return codes


def _in_child(check) -> int:
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    sys.settrace(None)
    code = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        check()
        code = 0
    finally:
        os._exit(code)
