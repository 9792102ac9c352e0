"""Values ↔ what SQLite keeps: JSON text and little-endian arrays.

JSON: always valid UTF-8 without NUL. Lone surrogates, which agents do produce (half an emoji cut by a byte limit),
are kept as ``\\udXXX`` escapes, integers of any size survive, and non-finite numbers become null, so that any JSON
reader can read a store.
Arrays: raw ``int32`` / ``float32`` little-endian bytes, so NaN payloads survive.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import orjson

from lightning_lab.records import Floats, Ids, Mask
from lightning_lab.store.errors import BadRecordError

_Scalar = TypeVar("_Scalar", bound=np.generic)
_INT32 = np.dtype("<i4")
_INT64 = np.dtype("<i8")
_FLOAT32 = np.dtype("<f4")
ID_BYTES = _INT32.itemsize
"""Of a stored token id."""
_LONGEST_RUNS = 1 << 26
"""Tokens in one array; 256 MB as int32."""
_INT32_RANGE = np.iinfo(np.int32)


def dump_json(value: Any) -> str:
    """JSON text of ``value``. Key order is kept. Raises `BadRecordError` for what JSON cannot hold."""
    try:
        return orjson.dumps(value, default=_known, option=orjson.OPT_SERIALIZE_NUMPY).decode()
    except TypeError:  # lone surrogates, integers beyond 64 bits, keys that are no strings, deep nesting
        try:
            return json.dumps(_plain(value), allow_nan=False, separators=(",", ":"))
        except (TypeError, ValueError, RecursionError) as error:
            raise BadRecordError(f"This value cannot be stored as JSON: {error}. Use plain JSON values.") from error


def load_json(text: str) -> Any:
    """The inverse of `dump_json`. (orjson would refuse half a character as well, and round large integers.)"""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):  # half a character
        return json.loads(text)


def plain(value: Any) -> Any:
    """``value`` as `load_json` will give it."""
    return load_json(dump_json(value))


def _known(value: Any) -> Any:
    """The few types beyond JSON that are accepted, as JSON values."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    raise TypeError(f"{type(value).__name__} is no JSON value")


def _plain(value: Any) -> Any:
    """A copy made of dict, list, str, int, finite float, bool and None only."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, enum.Enum):
        return _plain(value.value)
    if isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return _plain(_known(value))


def dump_numbers(numbers: Mapping[str, float]) -> str:
    """Named numbers as JSON; NaN and infinities as the strings that ``float()`` reads."""
    return dump_json({name: _number(float(value)) for name, value in numbers.items()})


def load_numbers(text: str) -> dict[str, float]:
    return {name: float(value) for name, value in load_json(text).items()}


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def finite(value: float | None, name: str) -> float | None:
    """``value`` as a Python float. Raises `BadRecordError` for NaN and infinities."""
    if value is None:
        return None
    number = float(value)
    if not math.isfinite(number):
        raise BadRecordError(f"{name} is {number}; it must be finite, or None where there is none.")
    return number


def as_ids(values: npt.ArrayLike, name: str) -> Ids:
    """``values`` as int32, shape [n]. Raises `BadRecordError` for fractions, other shapes and values out of range."""
    array = np.asarray(values)
    if array.ndim != 1:
        raise BadRecordError(f"{name} has shape {array.shape}; it must be one-dimensional.")
    if array.dtype == np.int32:
        return array
    if array.size and array.dtype.kind not in "iu":
        raise BadRecordError(f"{name} has dtype {array.dtype}; it must hold integers.")
    if array.size and (array.min() < _INT32_RANGE.min or array.max() > _INT32_RANGE.max):
        raise BadRecordError(f"{name} holds numbers beyond 32 bits.")
    return array.astype(np.int32)


def as_floats(values: npt.ArrayLike, name: str) -> Floats:
    """``values`` as float32, shape [n]; None becomes NaN."""
    array = np.asarray(values)
    if array.ndim != 1:
        raise BadRecordError(f"{name} has shape {array.shape}; it must be one-dimensional.")
    try:
        return array.astype(np.float32, copy=False)
    except (TypeError, ValueError) as error:
        raise BadRecordError(f"{name} must hold numbers: {error}") from error


def pack_ids(ids: Ids) -> bytes:
    return ids.astype(_INT32, copy=False).tobytes()


def unpack_ids(blob: bytes) -> Ids:
    """Read-only view of the bytes."""
    return np.frombuffer(blob, _INT32)


def pack_refs(refs: npt.NDArray[np.int64]) -> bytes:
    return refs.astype(_INT64, copy=False).tobytes()


def unpack_refs(blob: bytes) -> npt.NDArray[np.int64]:
    return np.frombuffer(blob, _INT64)


def pack_floats(values: Floats) -> bytes:
    return values.astype(_FLOAT32, copy=False).tobytes()


def unpack_floats(blob: bytes) -> Floats:
    return np.frombuffer(blob, _FLOAT32)


def pack_runs(values: Ids) -> bytes:
    """Run-length code: int32 pairs (value, how often). ``[3,3,4] → (3,2)(4,1)``."""
    if not values.size:
        return b""
    if values.size > _LONGEST_RUNS:
        raise BadRecordError(f"An array of {values.size} tokens is too long to store; the limit is {_LONGEST_RUNS}.")
    if (values == values[0]).all():  # nearly always: one policy version samples a whole reply
        return np.array((values[0], values.size), _INT32).tobytes()
    starts = np.flatnonzero(np.r_[True, values[1:] != values[:-1]])
    counts = np.diff(np.r_[starts, values.size])
    return np.column_stack((values[starts], counts)).astype(_INT32).tobytes()


def unpack_runs(blob: bytes) -> Ids:
    """Raises ValueError for what `pack_runs` cannot have made: a few bytes of a foreign file must not fill memory."""
    pairs = np.frombuffer(blob, _INT32).reshape(-1, 2)
    counts = pairs[:, 1].tolist()  # few: Python is faster
    if counts and (min(counts) < 1 or sum(counts) > _LONGEST_RUNS):
        raise ValueError("impossible run lengths")
    return frozen(pairs[:, 0].repeat(counts))


def pack_mask(mask: Mask) -> bytes:
    """Run-length code too: masks have few runs."""
    return pack_runs(mask.astype(np.int32))


def unpack_mask(blob: bytes) -> Mask:
    return frozen(unpack_runs(blob).astype(np.bool_))


def frozen(array: npt.NDArray[_Scalar]) -> npt.NDArray[_Scalar]:
    """``array``, made read-only: records are immutable."""
    array.setflags(write=False)
    return array
