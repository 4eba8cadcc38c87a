"""A check that jax is not used in a process that was forked after jax was used.

jax runs computations on its own threads. A forked child has only the thread that called fork, so a
computation there would never end. The tuner and the Optuna sampler call `check_process` before every
computation, which raises an error instead.
"""

import os

_first_pid: int | None = None


class ForkedProcessError(RuntimeError):
    """A computation was requested in a process that was forked after jax had been used.

    Start processes with the "spawn" method of `multiprocessing`, or create the first `Tuner` or `LiBOSampler`
    after the fork. Telling scores and reading trials works in a forked process.
    """


def check_process(what: str) -> None:
    """Raise a `ForkedProcessError` in a fork of the process that computed first; `what` names the caller."""
    global _first_pid
    pid = os.getpid()
    if _first_pid is None:
        _first_pid = pid
    if _first_pid != pid:
        raise ForkedProcessError(
            f"{what} was called in a forked process (pid {pid}), but jax was used before the fork (in pid "
            f"{_first_pid}) and its threads are not forked: the computation would never end. Start processes "
            'with multiprocessing\'s "spawn" method, or create the first Tuner or LiBOSampler after the '
            "fork. Telling scores and reading trials works in a forked process."
        )
