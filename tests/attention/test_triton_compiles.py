"""The Triton kernels compiled for cards that are not here: registers, no spills, tensor cores.

`triton.compile` needs no GPU, and ptxas, cuobjdump and nvdisasm come with it. Kernels are compiled
in a process of their own, which has not chosen Triton's interpreter.
"""

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch

from kvchat.memory.formats import FormatPair

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")

CAPABILITIES = (80, 86, 89, 90, 120)
# What a block of threads may have without the card's opt-in being lower: 99 KiB on 86, 89 and 120.
_MOST_SHARED_BYTES = 99 * 1024


@dataclass(frozen=True, slots=True)
class Build:
    """A kernel as the product launches it: `pair` of sealed blocks, or None for the hot window."""

    pair: str | None
    dim: int
    num_rows: int
    capability: int
    dtype: torch.dtype = torch.float16
    ratio: int = 4
    softcap: float | None = None
    window: int | None = None

    def __str__(self) -> str:
        words = [self.pair or "hot", f"d{self.dim}", f"rows{self.num_rows}", f"sm{self.capability}"]
        words += [str(self.dtype).removeprefix("torch.")] + ["softcap"] * (self.softcap is not None)
        return " ".join(words + ["window"] * (self.window is not None))


@dataclass(frozen=True, slots=True)
class Built:
    """registers of a thread, stack and shared bytes, and the names of all instructions."""

    registers: int
    stack_bytes: int
    shared_bytes: int
    instructions: tuple[str, ...]


Compile = Callable[..., Built]


@pytest.fixture(scope="module")
def compiled() -> Iterator[Compile]:
    """Calls a function of this module where Triton compiles."""
    context = get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=_compile_not_interpret) as pool:
        yield lambda function, *arguments: pool.submit(function, *arguments).result()


def _compile_not_interpret() -> None:
    os.environ.pop("TRITON_INTERPRET", None)


def _compiled(build: Build) -> Built:
    kernel, options = _asked(build)
    half = {torch.float16: "*fp16", torch.bfloat16: "*bf16"}[build.dtype]
    rotated = build.pair is not None and FormatPair.parse(build.pair).key.bits is not None
    kinds = {"query": "*fp16" if rotated else half, "keys": half, "values": half}
    kinds |= {"out": "*fp32", "sums": "*fp32", "scale": "fp32", "cap": "fp32"}
    kinds |= {"addresses": "*i64", "positions": "*i32", "num_blocks": "*i32"}
    kinds |= {"query_position": "*i32", "span": "*i32"}
    # What launches find divisible by 16; the rest is not specialized.
    aligned = {"query", "out", "addresses", "positions", "keys", "values", "key_head_stride"}
    aligned |= {"key_stride", "value_head_stride", "value_stride"}
    return _made(kernel, kinds, options, aligned, build.capability)


def _compiled_around(name: str, dim: int, capability: int) -> Built:
    """`rotate` or `merge`, which come before and after the dots."""
    from kvchat.attention.triton_paged import kernels

    kernel = getattr(kernels, name)
    kinds = dict.fromkeys(("parts", "sums", "matrix"), "*fp32")
    kinds |= dict.fromkeys(("vectors", "sinks", "out"), "*bf16")
    options = {"dim": dim, "wide": 1 << (dim - 1).bit_length()}
    if name == "merge":
        options |= {"parts_wide": 256, "has_sinks": True}
    return _made(kernel, kinds, options, set(kinds) - {"sums", "sinks"}, capability)


def _made(
    kernel: Any, kinds: dict[str, str], options: dict[str, Any], aligned: set[str], capability: int
) -> Built:
    """Compiles a kernel for the types of its arguments (i32 where none is said); `options` are its
    constants and what else a launch says.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = kernel.arg_names
    launch = {name: value for name, value in options.items() if name not in names}
    constants = {name: value for name, value in options.items() if name in names}
    signature = {name: kinds.get(name, "i32") for name in names}
    signature |= dict.fromkeys(constants, "constexpr")
    attributes = {
        (place,): [["tt.divisibility", 16]] for place, name in enumerate(names) if name in aligned
    }
    source = ASTSource(kernel, signature, constants, attributes)
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=launch)
    return _read(made.asm["cubin"], made.metadata.shared)


def _asked(build: Build) -> tuple[Any, dict[str, Any]]:
    """The kernel, and what `attend` would have it compiled for."""
    from kvchat.attention.backend import Scoring
    from kvchat.attention.triton_paged import attend, kernels
    from kvchat.attention.triton_paged.table import HotWindow, LayerTable

    tokens = -(-build.num_rows // build.ratio)
    meta = torch.device("meta")
    hot = torch.empty(2, 64, build.dim, dtype=build.dtype, device=meta)
    ints = torch.empty(3, dtype=torch.int32, device=meta)
    table = LayerTable((), HotWindow(hot, hot, ints), ints, build.window)
    query = torch.empty(1, 2 * build.ratio, tokens, build.dim, dtype=build.dtype, device=meta)
    launch = attend.Launch.of(query, table, Scoring(build.dim**-0.5, build.softcap))
    options = {**launch.options, "goes_on": tokens > 1}
    if build.pair is None:
        return kernels.attend_hot, options | {"causal": tokens > 1}
    pair = FormatPair.parse(build.pair)
    options |= attend.block_options(pair, build.dim, build.dim, build.dtype)
    return kernels.attend_blocks, options


def _read(cubin: bytes, shared_bytes: int) -> Built:
    import tempfile

    import triton

    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)

        def said(tool: str, option: str) -> str:
            command = [str(tools / tool), option, str(file)]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout

        usage = re.search(r"REG:(\d+) STACK:(\d+)", said("cuobjdump", "--dump-resource-usage"))
        assembly = said("nvdisasm", "--print-code")
    assert usage is not None
    names = re.findall(r"\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]+)", assembly)
    return Built(int(usage[1]), int(usage[2]), shared_bytes, tuple(names))


def families(built: Built) -> set[str]:
    return {name.split(".")[0] for name in built.instructions}


def check(built: Built) -> None:
    check_registers(built)
    assert families(built) & {"HMMA", "HGMMA"}
    # Reads of single bytes would be a tile that is unpacked behind shared memory.
    assert not [name for name in built.instructions if name.startswith(("LDS.U8", "LDS.S8"))]


def check_registers(built: Built) -> None:
    assert built.stack_bytes == 0
    assert 0 < built.registers <= 255
    assert built.shared_bytes <= _MOST_SHARED_BYTES
    # Local memory is where spilled registers go.
    assert not families(built) & {"LDL", "STL"}
    assert {"LDG", "STG"} <= families(built)


FEW = [
    Build("int8", 64, 4, 86),
    Build("int6/int4", 128, 4, 120),
    Build("int4", 128, 2048, 89),
    Build(None, 64, 4, 80, torch.bfloat16),
]
MANY = [
    *(
        Build(pair, dim, rows, capability)
        for pair in ("int8", "int4", "int6/int4", "fp", None)
        for dim in (64, 128, 256)
        for rows in (4, 2048)
        for capability in CAPABILITIES
    ),
    *(
        Build(pair, dim, rows, 86, torch.bfloat16, softcap=30.0, window=1024)
        for pair in ("int5", "fp8", "int2", "fp/int8", "int8/fp")
        for dim, rows in ((80, 4), (96, 2048), (112, 4), (128, 2048), (256, 4), (256, 2048))
    ),
]


@needs_triton
@pytest.mark.parametrize("build", FEW, ids=str)
def test_a_kernel_fits_the_card(compiled: Compile, build: Build) -> None:
    check(compiled(_compiled, build))


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("build", MANY, ids=str)
def test_every_product_kernel_fits_every_card(compiled: Compile, build: Build) -> None:
    check(compiled(_compiled, build))


@needs_triton
@pytest.mark.parametrize(
    ("name", "dim", "capability"), [("rotate", 256, 86), ("merge", 80, 120), ("merge", 256, 89)]
)
def test_what_comes_around_the_dots_spills_nothing(
    compiled: Compile, name: str, dim: int, capability: int
) -> None:
    check_registers(compiled(_compiled_around, name, dim, capability))
