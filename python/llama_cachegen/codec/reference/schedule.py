"""How many bins each layer gets: LMCache's schedule for a model it has no table of.

The tables that it does have (32 and 40 layers) are the same rule written out. Early layers, and keys more than values,
move the output most (CacheGen, SIGCOMM '24, arXiv 2310.07240), so they get 32 bins and the others 16.
"""

from __future__ import annotations

from typing import NamedTuple

from ._status import argument_error

__all__ = ["MAX_LAYERS", "Schedule", "lmcache_schedule"]

MAX_LAYERS = 1024
FINE_BINS = 32
COARSE_BINS = 16
FINE_KEY_LAYERS = 10
FINE_VALUE_LAYERS = 2


class Schedule(NamedTuple):
    """Bins of every layer.

    Attributes:
        key_bins: one number a layer, for K.
        value_bins: one number a layer, for V.
    """

    key_bins: tuple[int, ...]
    value_bins: tuple[int, ...]


def lmcache_schedule(n_layers: int) -> Schedule:
    """The bins that LMCache 0.5.6 uses for a model with this many layers.

    A model of fewer than ten layers has 32 bins everywhere. All others have them in K of the first ten layers and V of
    the first two, and 16 elsewhere.

    Args:
        n_layers: layers of the model, 1 to 1,024.

    Raises:
        CodecError: n_layers is out of range.
    """
    if not 1 <= n_layers <= MAX_LAYERS:
        raise argument_error(f"a model of {n_layers} layers has no schedule; 1 to {MAX_LAYERS} layers are possible")
    if n_layers < FINE_KEY_LAYERS:
        return Schedule((FINE_BINS,) * n_layers, (FINE_BINS,) * n_layers)

    def bins(n_fine: int) -> tuple[int, ...]:
        return (FINE_BINS,) * n_fine + (COARSE_BINS,) * (n_layers - n_fine)

    return Schedule(bins(FINE_KEY_LAYERS), bins(FINE_VALUE_LAYERS))
