"""Codes, scales and shifts as optimum-quanto makes them for the library's quantized cache.

In the order of a vector's values, and then of the tokens, 64 values each share a scale and a shift,
both in the dtype of what is stored:

    scale = (max - min) / (2^b - 1)   code = round((x - min) / scale)   value = scale * code + min

Everything is computed by the library's own functions; this module only names their arguments. The
one place that imports it. Knows no block and no packing.
"""

from math import prod
from typing import Any

import torch
from torch import Tensor

from kvchat.errors import ModelError


def _library() -> Any:
    try:
        import optimum.quanto as library
    except ImportError:
        raise ModelError("quanto_missing") from None
    return library


def quantize(x: Tensor, bits: int, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """x [parts, tokens, D] -> codes uint8 [parts, tokens, D], scales and shifts [parts, tokens * D
    / group] in x's dtype. A group with NaN or infinity in it comes back as no number.
    """
    library = _library()
    kind = getattr(library, f"qint{bits}")
    scales, shifts = library.MaxOptimizer()(x, kind, 0, group)
    codes: Tensor = torch.ops.quanto.quantize_affine(x, bits, 0, group, scales, shifts)
    parts = x.shape[0]
    return codes.view(x.shape), scales.view(parts, -1), shifts.view(parts, -1)


def dequantize(codes: Tensor, scales: Tensor, shifts: Tensor, bits: int, group: int) -> Tensor:
    """The other way: in the scales' dtype, [parts, tokens, D]."""
    library = _library()
    kind = getattr(library, f"qint{bits}")
    shape = codes.shape
    stride = tuple(prod(shape[i + 1 :]) for i in range(len(shape)))
    columns = scales.reshape(-1, 1), shifts.reshape(-1, 1)
    grouped = codes.reshape(-1, group)
    held = library.WeightQBitsTensor(kind, 0, group, shape, stride, grouped, *columns)
    # Reading back what it has packed would build its extension, which takes a compiler and minutes.
    held._data = grouped
    found: Tensor = held.dequantize()
    return found
