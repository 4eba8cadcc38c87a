"""Random keys of tasks, computed on the host: the same bits as those of `jax.random`, without compilation.

A key of jax is made by programs of which each takes a third of a second to compile. The tuner needs few keys,
and needs them for its first answer. With another generator than threefry, jax computes them.

| here         | jax                                                                      |
|--------------|--------------------------------------------------------------------------|
| `folded`     | `jax.random.key(seed[0])`, then `fold_in` of the other numbers           |
| `split`      | `key_data(split(key, num))`                                              |
| `policy_keys`| the same for the policy's key of a task (`split_task_key`)               |
"""

from collections.abc import Sequence
from typing import Any, cast

import jax
import numpy as np
from jaxtyping import PRNGKeyArray, UInt32

from jlibo.lifelong.one_task import TaskKeys, split_task_key

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA
"""Constants of Threefry-2x32 (Salmon, Moraes, Dror & Shaw 2011)."""


def folded(seed: Sequence[int]) -> PRNGKeyArray:
    """Return the key of the first number with the others folded in, as `run_lifelong` does for a task."""
    bits = jax.dtypes.canonicalize_dtype(np.int64).itemsize * 8  # without x64, jax uses the lower half
    if (
        not _is_threefry()
        or not all(0 <= number < 2**31 for number in seed[1:])
        or seed[0] >= 2 ** (bits - 1)
    ):
        key = jax.random.key(seed[0])
        for number in seed[1:]:
            key = jax.random.fold_in(key, number)
        return key
    data = np.array([seed[0] >> 32, seed[0] & 0xFFFFFFFF], np.uint32)
    for number in seed[1:]:
        data = _threefry(data, np.zeros(1, np.uint32), np.array([number], np.uint32))[0]
    return jax.random.wrap_key_data(cast(Any, data))


def split(key: PRNGKeyArray, num: int) -> UInt32[np.ndarray, "num words"]:
    """Return the data of `num` keys that are split from a key."""
    if not _is_threefry():
        return np.asarray(jax.random.key_data(jax.random.split(key, num)))
    return _split(np.asarray(jax.random.key_data(key)), num)


def policy_keys(task: PRNGKeyArray, num: int) -> UInt32[np.ndarray, "num words"]:
    """Return the data of the policy's keys in the first `num` steps of a task, given the task's key."""
    if not _is_threefry():
        return split(split_task_key(task).policy, num)
    own = split(task, len(TaskKeys._fields))[TaskKeys._fields.index("policy")]
    return _split(own, num)


def _is_threefry() -> bool:
    config = jax.config
    is_default = getattr(config, "jax_default_prng_impl", None) == "threefry2x32"
    return is_default and bool(getattr(config, "jax_threefry_partitionable", False))


def _split(data: UInt32[np.ndarray, " words"], num: int) -> UInt32[np.ndarray, "num words"]:
    return _threefry(data, np.zeros(num, np.uint32), np.arange(num, dtype=np.uint32))


def _threefry(
    key: UInt32[np.ndarray, " words"], high: UInt32[np.ndarray, " num"], low: UInt32[np.ndarray, " num"]
) -> UInt32[np.ndarray, "num words"]:
    """Return the encrypted counters, as 32-bit words."""
    words = [key[0], key[1], key[0] ^ key[1] ^ np.uint32(PARITY)]
    first, second = high + words[0], low + words[1]
    for turn in range(5):
        for rotation in ROTATIONS[turn % 2]:
            first = first + second
            second = (second << np.uint32(rotation)) | (second >> np.uint32(32 - rotation))
            second = second ^ first
        first = first + words[(turn + 1) % 3]
        second = second + words[(turn + 2) % 3] + np.uint32(turn + 1)
    return np.stack([first, second], axis=-1)
