"""What one forward keeps alive beside weights and cache: an upper estimate from shapes.

The tests hold it between one and two times the live storages of real forwards on the CPU. On a card
the allocator's rounding and the kernels' own workspaces come on top; they are measured there.

With C tokens in the chunk, N in the text, H hidden, I intermediate, V vocabulary, b bytes a value:

    for the whole forward
        embeddings, residual stream, its sum            3 C H b
        cosines and sines                               2 C key_dim b, for each kind of layer
        ids, positions                                  16 C
        one layer's gathered prefix for each group      (T - C) K b
          none with the Triton kernels, but parts of
            a decode step's output, which stay          parts (4 O + 4 heads) + 4 Q
          on a CPU, where torch's flash kernel serves,
            no more of it than a tile                   min(1024, T - C) K b
          a piece of it as it is dequantised            min(256, T - C) K (b + 5)
        a look at what each block gets: a tile and      min(1024, T - C) K b for each group
          a piece as above, or scores, and its keys
          in fp32 if they are not                       min(1024, T - C) (12 min(4, C) heads + 4 K)
    and the most of
        a norm: fp32 copy, its square, the result       C H (8 + b)
        a layer's projections and attention             see below
        an MLP: normed input, gate, up, product         C (H + 3 I) b
        logits of one token, and sampling from them     V (b + 48) on a CPU, else V (b + 8)
    or, once the forward is done, beside the logits
        a block of all layers as it is quantized        V b + 64 layers (K / 2 + kv_heads) 8

A layer, with Q = query heads * key_dim, O = query heads * value_dim, K = kv_heads * (key_dim +
value_dim) and T tokens attended to (N, or window - 1 + C):

    projections: normed input, q, k, v, rotating        C (H + 5 Q + 2 K) b
    attention: normed input, q, k, v                    C (H + Q + K) b  and
        decoding on a CPU: outputs in b and fp32, a
          share's running softmax, queries and scores   3 O b + 4 (Q + O) + 4 shares (2 Q + 2 O +
                                                        66 heads + 64 kv_heads)
        the Triton kernels, decoding                    (Q + O) b
          a chunk: queries as they are and turned       C Q (b + 2), or as they are turned
                                                        C Q (b + 10)
          partial outputs of plain and of quantized
            values, the latter turned back, their sum
            as it grows                                 C (20 O + 24 heads)
        else: a partial output, in fp32, and the sum    C (O (b + 8) + 20 heads)
          prefix and chunk in one piece, if joined      T K b
          a sliding layer's mask                        C T (3 + b)
          softcap, sinks, a mask over grouped heads
            on a card: scores of all heads              C T (12 heads + 3)
            keys, values for all heads, in fp32         T (heads (key_dim + value_dim) + kv_heads
                                                        value_dim) 4
          latent: keys, values for all heads            T work_values b
            scores of all heads, twice, and a mask      C T (2 heads + 1) b
    a recurrent layer: its tiles of 64 in fp32          ceil(C / 64) 64 work_values 4 + 2 states
"""

from dataclasses import dataclass, replace

from kvchat.arch.spec import LayerSpec, ModelSpec

_BLOCK_TOKENS = 64
_FP32_BYTES = 4
_TILE_TOKENS, _PIECE_TOKENS = 16 * _BLOCK_TOKENS, 4 * _BLOCK_TOKENS
# Programs that share a text's blocks when a card decodes, for each of the pairs of formats that it
# may be stored in (two, and some blocks as computed), and those of the hot window.
_MOST_SPLITS, _MOST_PAIRS, _HOT_SPLITS = 64, 3, 8
_WEIGHING_QUERIES = 4  # of a chunk, whose attention to each block is looked at
# Threads that a long text may be shared among; more of them cost some KiB each.
_LONG_TOKENS, _MOST_SHARES = 1024, 8
# A token of the vocabulary when all of it is sorted, on the CPU: score, weight, place, then the
# weight in its order twice over, sum, difference.
_SAMPLING_BYTES = 4 + 4 + 8 + (4 + 8) + 8 + 8 + 4


def activation_bytes(
    spec: ModelSpec,
    chunk_tokens: int,
    context_tokens: int,
    dtype_bytes: int,
    device_type: str = "cuda",
    seals_in_less: bool = False,
    weighs: bool = False,
) -> int:
    """Upper estimate for reading a chunk at the end of a text, storing the blocks that it fills
    (`seals_in_less`: not as computed), and drawing a token after it. `weighs`: it is looked at what
    attention blocks get.

    `device_type` as torch names it, or `triton` for a card whose kernels read blocks where they
    lie. So does a CPU, which samples in its own memory, too; any other device joins a layer's keys
    and values in one piece first. For `cuda` it is not known which, and the greater counts.
    """
    chunk = min(chunk_tokens, context_tokens)
    reading = _Reading(spec, chunk, context_tokens, dtype_bytes, device_type)
    found = _forward_bytes(reading)
    if device_type == "cuda":
        found = max(found, _forward_bytes(replace(reading, device_type="triton")))
    if weighs:
        found += _looking(reading)
    return max(found, _sealing_bytes(reading)) if seals_in_less else found


def _sealing_bytes(reading: "_Reading") -> int:
    """Keys, then values, of 64 tokens in fp32 turned, and their absolute values; of each vector the
    greatest, in fp32 and as its scale. Beside them what the decode kernel wrote its sums to.
    """
    spec = reading.spec
    sums = max((_sums(reading, one) for one in spec.layers), default=0)
    widest = max(
        (
            sum(one.num_kv_heads * (max(one.key_dim, one.value_dim) + 1) for one in layers)
            for layers in ([spec.layers[i] for i in group] for group in spec.groups())
            if layers[0].kind in ("full", "sliding")
        ),
        default=0,
    )
    floats = _BLOCK_TOKENS * widest * 2 + sums
    return spec.vocab_size * reading.b + floats * _FP32_BYTES


def _looking(reading: "_Reading") -> int:
    """In layers without a window."""
    groups = [reading.spec.layers[group[0]] for group in reading.spec.groups()]
    full = [one for one in groups if one.kind == "full"]
    prefix, b = reading.context - reading.chunk, reading.b
    tile, piece = min(_TILE_TOKENS, prefix), min(_PIECE_TOKENS, prefix)
    widest = max((one.values_per_token for one in full), default=0)
    scores = 3 * min(_WEIGHING_QUERIES, reading.chunk) * reading.spec.num_query_heads
    scored = tile * (scores + (widest if b < _FP32_BYTES else 0)) * _FP32_BYTES
    kept = sum(tile * one.values_per_token * b for one in full)
    return kept + max(piece * widest * (b + 5), scored)


def _forward_bytes(reading: "_Reading") -> int:
    spec, chunk, b = reading.spec, reading.chunk, reading.b
    hidden = spec.hidden_size
    kinds = {layer.kind for layer in spec.layers}
    widest = max((layer.key_dim for layer in spec.layers), default=0)
    whole = chunk * (3 * hidden * b + 16 + 2 * widest * b * len(kinds)) + _gathered(reading)
    return whole + max(
        chunk * hidden * (2 * _FP32_BYTES + b),
        max((_mixer(reading, layer) for layer in set(spec.layers)), default=0),
        chunk * (hidden + 3 * spec.intermediate_size) * b,
        sampling_bytes(spec, b, reading.device_type),
    )


def sampling_bytes(spec: ModelSpec, dtype_bytes: int, device_type: str = "cuda") -> int:
    """Logits of one token, and drawing one from them: on a card only a penalty computes there."""
    drawing = _SAMPLING_BYTES if device_type == "cpu" else 2 * _FP32_BYTES
    return spec.vocab_size * (dtype_bytes + drawing)


@dataclass(frozen=True, slots=True)
class _Reading:
    """A forward of `chunk` tokens at the end of a text of `context`; `b` bytes a value."""

    spec: ModelSpec
    chunk: int
    context: int
    b: int
    device_type: str

    @property
    def in_blocks(self) -> bool:
        """Decoding on a CPU reads the blocks where they lie; all else gathers a layer first."""
        return self.chunk == 1 and self.device_type == "cpu"

    @property
    def in_place(self) -> bool:
        """The Triton kernels gather nothing."""
        return self.device_type == "triton"

    def held(self, layer: LayerSpec) -> int:
        """Tokens that the chunk attends to, itself included."""
        if layer.window is None:
            return self.context
        return min(self.context, layer.window - 1 + self.chunk)

    def gathered(self, layer: LayerSpec) -> int:
        """Tokens of the prefix that lie in a workspace at once."""
        prefix = self.held(layer) - self.chunk
        by_tiles = (
            self.device_type == "cpu"
            and layer.window is None
            and not self.spec.dense_scores
            and layer.key_dim == layer.value_dim
        )
        return min(prefix, _TILE_TOKENS) if by_tiles else prefix


def _gathered(reading: _Reading) -> int:
    if reading.in_blocks:
        return 0
    firsts = [reading.spec.layers[group[0]] for group in reading.spec.groups()]
    paged = [layer for layer in firsts if layer.kind in ("full", "sliding")]
    if reading.in_place:
        return sum(_parts(reading, layer) for layer in paged)
    held = sum(reading.gathered(one) * one.values_per_token * reading.b for one in paged)
    pieces = (
        min(_PIECE_TOKENS, reading.held(one) - reading.chunk) * one.values_per_token
        for one in paged
    )
    return held + max(pieces, default=0) * (reading.b + 5)


def _mixer(reading: _Reading, layer: LayerSpec) -> int:
    spec, chunk, b = reading.spec, reading.chunk, reading.b
    if layer.kind == "recurrent":
        tokens = 1 if chunk == 1 else -(-chunk // _BLOCK_TOKENS) * _BLOCK_TOKENS
        return tokens * layer.work_values * _FP32_BYTES + 2 * layer.recurrent_bytes
    own = layer.num_kv_heads * (layer.key_dim + layer.value_dim)
    queries = spec.num_query_heads * layer.key_dim
    projections = chunk * (spec.hidden_size + 5 * queries + 2 * own) * b
    attention = chunk * (spec.hidden_size + queries + own) * b
    return max(projections, attention + _attention(reading, layer, own))


def _sums(reading: _Reading, layer: LayerSpec) -> int:
    """Floats of the CPU kernel's running softmax, queries and scores, for each share of a long
    text.
    """
    heads = reading.spec.num_query_heads
    shares = _MOST_SHARES if reading.context >= _LONG_TOKENS else 1
    floats = heads * (3 + 2 * (layer.key_dim + layer.value_dim) + _BLOCK_TOKENS)
    return shares * (floats + layer.num_kv_heads * _BLOCK_TOKENS)


def _attention(reading: _Reading, layer: LayerSpec, own: int) -> int:
    spec, chunk, b = reading.spec, reading.chunk, reading.b
    heads, held = spec.num_query_heads, reading.held(layer)
    if reading.in_blocks and layer.kind != "latent":
        outputs = 3 * heads * layer.value_dim * b
        floats = _sums(reading, layer) + heads * (layer.key_dim + layer.value_dim)
        return outputs + floats * _FP32_BYTES
    if reading.in_place and layer.kind != "latent":
        return _by_triton(reading, layer)
    found = chunk * heads * (layer.value_dim * (b + 2 * _FP32_BYTES) + 20)
    slides = layer.window is not None
    if slides or spec.dense_scores or reading.device_type != "cpu":
        found += held * own * b
    if slides:
        found += chunk * held * (3 + b)
    if layer.kind == "latent":
        return found + (held * layer.work_values + chunk * held * (2 * heads + 1)) * b
    # On a card torch's kernels take a mask or grouped heads, not both: its plain version serves.
    plain = slides and heads != layer.num_kv_heads and reading.device_type != "cpu"
    if plain or spec.dense_scores or layer.key_dim != layer.value_dim:
        wide = heads * (layer.key_dim + layer.value_dim) + layer.num_kv_heads * layer.value_dim
        found += held * wide * _FP32_BYTES + chunk * held * (3 * heads * _FP32_BYTES + 3)
    return found


def _parts(reading: _Reading, layer: LayerSpec) -> int:
    """Buffers of a decode step, which stay from one to the next."""
    heads, blocks = reading.spec.num_query_heads, -(-reading.context // _BLOCK_TOKENS)
    parts = _MOST_PAIRS * min(_MOST_SPLITS, blocks) + _HOT_SPLITS
    return heads * (parts * (layer.value_dim + 1) + layer.key_dim) * _FP32_BYTES


def _by_triton(reading: _Reading, layer: LayerSpec) -> int:
    spec, chunk, b = reading.spec, reading.chunk, reading.b
    heads = spec.num_query_heads
    queries, outputs = heads * layer.key_dim, heads * layer.value_dim
    if chunk == 1:
        return (queries + outputs) * b
    turning = chunk * queries * (b + 10)
    partial = chunk * (queries * (b + 2) + 5 * outputs * _FP32_BYTES + 24 * heads)
    return max(turning, partial)
