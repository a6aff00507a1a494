"""What this machine can do at most, measured on a model's own threads between its steps.

Not here: what a step needs (``bench``). Always true: what is read lies in memory as weights do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from insitu.kernels.native import Native, OperatorTime

LINE_BYTES = 64


class Ceilings:
    """A buffer of ``num_bytes`` to read, and loops that run on registers alone."""

    def __init__(self, native: Native, num_bytes: int) -> None:
        self.num_bytes = -(-num_bytes // LINE_BYTES) * LINE_BYTES
        self._measured = native._executor.ceilings(self.num_bytes)  # noqa: SLF001

    def read_seconds(self, first: int, num_bytes: int) -> float:
        """Seconds to read ``num_bytes`` from byte ``first``, a multiple of LINE_BYTES."""
        return self._measured.read_seconds(first, num_bytes)

    def peak_ops_per_second(self, kind: Literal["int8", "float32"], seconds: float) -> float:
        """The best of ``seconds``: operations a second; to add and to multiply are two."""
        return self._measured.peak_ops_per_second(kind, seconds)


def take_profile(native: Native) -> list[OperatorTime]:
    """What ``start_profile`` began to measure; from here on no clock is read between operators."""
    times = native.profile()
    native._executor.stop_profile()  # noqa: SLF001
    return times
