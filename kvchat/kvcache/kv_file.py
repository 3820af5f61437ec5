"""One KV file: sealed blocks of one text that follow each other, or its newest tokens as computed.

A safetensors file. Its metadata name the model and each copy, with a checksum over what the copy is
and its bytes; its name is a hash of those. So a byte that changed, a file of another model or shape
and a file under another's name are all found out before anything of it is used. Knows no pool.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from torch import Tensor

from kvchat.errors import SettingsError
from kvchat.kvcache.blocks import Geometry, chain_key, shape_of
from kvchat.kvcache.disk import SUFFIX
from kvchat.memory.formats import FormatPair

VERSION = "kvchat-kv-1"


class Damaged(Exception):
    """The file is not what its name says. Caught where it is read: the file is removed."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One copy in a file: of the name at `place` in `Header.keys`, for one group."""

    place: int
    group: int
    pair: FormatPair
    over: FormatPair
    digest: str

    @property
    def tensor(self) -> str:
        return f"{self.place}.{self.group}"


@dataclass(frozen=True, slots=True)
class Header:
    """What a file holds. `parent`: the name before the first of `keys`; `depth`: how many there are
    before. `tail_tokens`: 0 for blocks; a tail has one key, over so many ids.
    """

    model: str
    parent: bytes
    depth: int
    keys: tuple[bytes, ...]
    copies: tuple[Stored, ...]
    tail_tokens: int = 0

    @property
    def name(self) -> str:
        """`<model>/<hash of all that>`"""
        digest = blake2b(json.dumps(self.metadata(), sort_keys=True).encode(), digest_size=16)
        return f"{self.model}/{digest.hexdigest()}{SUFFIX}"

    def metadata(self) -> dict[str, str]:
        rows = [
            {
                "place": one.place,
                "group": one.group,
                "pair": str(one.pair),
                "over": str(one.over),
                "digest": one.digest,
            }
            for one in self.copies
        ]
        return {
            "format": VERSION,
            "model": self.model,
            "parent": self.parent.hex(),
            "depth": str(self.depth),
            "keys": " ".join(key.hex() for key in self.keys),
            "copies": json.dumps(rows),
            "tail_tokens": str(self.tail_tokens),
        }

    @classmethod
    def parse(cls, metadata: dict[str, str]) -> "Header":
        """Raises Damaged."""
        try:
            if metadata["format"] != VERSION:
                raise Damaged
            keys = tuple(bytes.fromhex(key) for key in metadata["keys"].split())
            copies = tuple(_stored(row) for row in json.loads(metadata["copies"]))
            if not copies or not all(0 <= one.place < len(keys) for one in copies):
                raise Damaged
            return cls(
                metadata["model"],
                bytes.fromhex(metadata["parent"]),
                int(metadata["depth"]),
                keys,
                copies,
                int(metadata["tail_tokens"]),
            )
        except (KeyError, ValueError, TypeError, AttributeError, SettingsError):
            raise Damaged from None


def _stored(row: dict[str, Any]) -> Stored:
    pair, over = FormatPair.parse(row["pair"]), FormatPair.parse(row["over"])
    return Stored(int(row["place"]), int(row["group"]), pair, over, str(row["digest"]))


def model_name(root: bytes, geometries: Iterable[Geometry]) -> str:
    """The folder of a model's files: a hash of what its KV depends on and of its layout. With other
    lowest formats of layers it is another: what was stored below them is not found.
    """
    layout = [
        (g.layers, g.num_kv_heads, g.key_dim, g.value_dim, g.window, str(g.dtype))
        + (() if g.least is None else (str(g.least),))
        for g in geometries
    ]
    return blake2b(root + repr((VERSION, layout)).encode(), digest_size=16).hexdigest()


def digest_of(
    model: str, key: bytes, about: tuple[int, FormatPair, FormatPair], data: Tensor
) -> str:
    """Over what the copy is and its bytes, [n] uint8 on the host. `about`: its group, its formats,
    the lowest formats that it was computed over.
    """
    group, pair, over = about
    # Of the strong ones the one that processors compute themselves.
    digest = sha256(f"{model} {key.hex()} {group} {pair} {over} ".encode())
    digest.update(data.numpy().data)
    return digest.hexdigest()


def write_file(
    path: Path, header: Header, pieces: Sequence[tuple[int, ...]], data: dict[str, Tensor]
) -> None:
    """`pieces`: the ids of each key, equally many. Raises OSError, SafetensorError."""
    tensors = {"ids": torch.tensor(pieces, dtype=torch.int64)} | data
    # Its writer for torch makes a type of ctypes for each size, and those are never let go.
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    save_file(arrays, path, metadata=header.metadata())


def read_header(folder: Path, name: str) -> Header:
    """Raises Damaged: also where the file lies under another's name. FileNotFoundError."""
    try:
        with safe_open(folder / name, framework="pt") as file:
            header = Header.parse(file.metadata() or {})
    except (SafetensorError, UnicodeDecodeError):
        raise Damaged from None
    if header.name != name:
        raise Damaged
    return header


class KVFileReader:
    """Reads the parts of one file, each checked before it is handed out. A context manager.

    Raises Damaged; FileNotFoundError where the file is gone.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.header = read_header(folder, name)
        try:
            self._file = safe_open(folder / name, framework="pt")
            self.ids: list[list[int]] = self._tensor("ids").tolist()
        except SafetensorError:
            raise Damaged from None
        self._check_ids()

    def __enter__(self) -> "KVFileReader":
        self._file.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *of: object) -> None:
        self._file.__exit__(*of)  # type: ignore[no-untyped-call]

    def _check_ids(self) -> None:
        """The names follow from the ids: otherwise either was changed."""
        header, key = self.header, self.header.parent
        if len(self.ids) != len(header.keys):
            raise Damaged
        for expected, ids in zip(header.keys, self.ids, strict=True):
            try:
                key = chain_key(key, ids)
            except OverflowError:
                raise Damaged from None
            if key != expected:
                raise Damaged

    def _tensor(self, name: str) -> Tensor:
        try:
            found: Tensor = self._file.get_tensor(name)  # type: ignore[no-untyped-call]
        except SafetensorError:
            raise Damaged from None
        return found

    def read(self, geometry: Geometry, stored: Stored) -> Tensor:
        """The bytes of a copy, [n] uint8: of a block in its formats, or of a hot window."""
        data = self._tensor(stored.tensor)
        header, key = self.header, self.header.keys[stored.place]
        expected = shape_of(geometry, stored.pair).block_bytes
        if header.tail_tokens:
            expected = header.tail_tokens * geometry.bytes_per_token
        if data.dtype != torch.uint8 or data.shape != (expected,):
            raise Damaged
        about = stored.group, stored.pair, stored.over
        if digest_of(header.model, key, about, data) != stored.digest:
            raise Damaged
        return data
