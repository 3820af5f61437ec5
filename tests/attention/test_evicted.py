"""Texts that go on without some of their blocks: as the library answers where those are masked, in
later turns too, and nobody else ever finds what was computed so.
"""

import pytest
import torch
from torch import Tensor

from kvchat.engine.local import LocalModel, Text
from kvchat.kvcache.pool import PoolFull, Storing
from kvchat.memory.formats import BLOCK_TOKENS, FormatPair
from tests.attention.test_parity import made, random_ids

IDS = random_ids(600, 5)
PLACES = (2, 3, 5)
SINCE = 520
WINDOWS = {"gemma3": 48, "wide window": 130}


def masked_logits(model: torch.nn.Module, kind: str, ids: list[int], places: tuple[int, ...]):
    """[len(ids), vocab] by the library in one pass, without any cache: from token SINCE on, layers
    without a window do not see the blocks of those places.
    """
    num = len(ids)
    queries, keys = torch.arange(num).unsqueeze(1), torch.arange(num).unsqueeze(0)
    causal = keys <= queries
    gone = torch.zeros(num, dtype=torch.bool)
    for place in places:
        gone[place * BLOCK_TOKENS : (place + 1) * BLOCK_TOKENS] = True
    full = _mask(causal & ~((queries >= SINCE) & gone.unsqueeze(0)))
    mask: Tensor | dict[str, Tensor] = full
    if kind in WINDOWS:
        sliding = _mask(causal & (keys > queries - WINDOWS[kind]))
        mask = {"full_attention": full, "sliding_attention": sliding}
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([ids]), attention_mask=mask, use_cache=False).logits
    model.set_attn_implementation("kvchat")
    return logits[0]


def _mask(seen: Tensor) -> Tensor:
    return torch.where(seen, 0.0, torch.finfo(torch.float32).min)[None, None]


def read(local: LocalModel, text: Text, ids: list[int], chunk: int) -> Tensor:
    logits = torch.empty(0)
    while text.num_cached < len(ids):
        start = text.num_cached
        logits = local.step(text, ids[start : min(len(ids), start + chunk)])
    return logits


def holed(local: LocalModel, chunk: int = 64) -> Text:
    text = local.open(IDS, chunk)
    read(local, text, IDS[:SINCE], 40)
    for place in PLACES:
        text.sequence.evict(place)
    return text


@pytest.mark.parametrize("chunk", [1, 33])
@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma3", "wide window"])
def test_it_answers_as_the_library_does_without_them(kind: str, chunk: int):
    local, model = made(kind)
    text = holed(local)
    expected = masked_logits(model, kind, IDS, PLACES)[-1]
    torch.testing.assert_close(read(local, text, IDS, chunk), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_the_next_turn_goes_on_from_there(kind: str):
    local, model = made(kind)
    text = holed(local)
    read(local, text, IDS, 33)
    local.close(text)
    longer = [*IDS, *random_ids(150, 6)]
    again = local.open(longer, 64)
    assert again.num_cached == len(IDS)
    assert again.sequence.evicted == set(PLACES)
    expected = masked_logits(model, kind, longer, PLACES)[-1]
    torch.testing.assert_close(read(local, again, longer, 70), expected, rtol=0, atol=1e-4)
    again.sequence.close()
    local.pool.check_integrity(0)


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_bytes_are_free_and_counted(kind: str):
    local, _ = made(kind)
    text = local.open(IDS, 64)
    read(local, text, IDS[:SINCE], 40)
    pool, sequence = local.pool, text.sequence
    full = [g for g in pool.geometries if g.window is None]
    tables = zip(sequence.tables, pool.geometries, strict=True)
    blocks = [table[2] for table, geometry in tables if geometry in full]
    size = sum(block.nbytes for block in blocks if block is not None)
    taken, to_come = pool.device_bytes - pool.free_block_bytes, sequence.bytes_to_come(SINCE, 64)
    assert sequence.evict(2) == size > 0
    assert pool.device_bytes - pool.free_block_bytes == taken - size
    assert sequence.evict(2) == 0
    held = sum(b.nbytes for table in sequence.tables for b in table if b is not None)
    pool.check_integrity(held)
    assert sequence.bytes_to_come(SINCE, 64) == to_come, "what was let go is not missing"


def test_another_text_does_not_find_what_was_computed_without_them():
    local, _ = made("llama")
    text = holed(local)
    longer = [*IDS, *random_ids(200, 7)]
    read(local, text, longer, 64)
    local.close(text)
    whole = local.open(longer, 64)  # the same ids, so it may go on over the holes
    assert whole.num_cached > 64 * min(PLACES)
    local.close(whole)
    sequence = type(whole.sequence).begin(local.pool, longer, 512, as_sealed=True)
    assert sequence.num_cached == 64 * min(PLACES), "only what comes before the first hole"
    assert not sequence.evicted
    sequence.close()


def test_one_that_parts_ways_behind_a_hole_has_names_of_its_own():
    local, _ = made("llama")
    text = holed(local)
    read(local, text, IDS, 64)
    local.close(text)
    other = [*IDS[:450], *random_ids(150, 8)]
    mine = local.open(other, 64)
    assert mine.sequence.evicted == set(PLACES)
    expected_from = mine.num_cached
    assert expected_from >= 448 - 64
    read(local, mine, other, 64)
    local.close(mine)
    clean = type(text.sequence).begin(local.pool, other, 512, as_sealed=True)
    assert clean.num_cached == 64 * min(PLACES)
    clean.close()
    local.pool.check_integrity(0)


@pytest.mark.parametrize("name", ["fp", "int8"])
def test_each_of_two_replies_goes_on_with_its_own_newest_tokens(name: str):
    """Regenerated, then back to the first one; and where the first try to go on had no room."""
    local, _ = made("llama")
    formats = FormatPair.parse(name)
    local.pool.storing = Storing(formats, formats)
    prompt = [*IDS, *random_ids(60, 11)]
    first, second = ([*prompt, *random_ids(20, seed)] for seed in (12, 13))
    text = holed(local)
    read(local, text, first, 64)
    local.close(text)
    local.pool.limit_bytes = local.pool.device_bytes
    with pytest.raises(PoolFull):
        local.open([*first, 7], 64)
    local.pool.limit_bytes = None
    text = local.open(second, 64)
    assert text.num_cached == len(prompt)
    read(local, text, second, 64)
    local.close(text)
    for reply in (first, second, first):
        text = local.open([*reply, 7], 64)
        assert text.num_cached == len(reply)
        assert text.sequence.evicted == set(PLACES)
        local.close(text)
    local.pool.check_integrity(0)


@pytest.mark.parametrize("left", ["edited", "dropped"])
@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_a_hole_with_nothing_behind_it_is_read_again(kind: str, left: str):
    """The edit of a turn within a hole, or all that came later dropped: what was let go would save
    nothing any more, so it is there again.
    """
    local, model = made(kind)
    text = local.open(IDS, 64)
    read(local, text, IDS[:SINCE], 40)
    for place in (2, 3, 4):
        text.sequence.evict(place)
    read(local, text, IDS, 33)
    local.close(text)
    other = [*IDS[:310], *random_ids(90, 9)] if left == "edited" else IDS
    if left == "dropped":
        for block in [one for one in local.pool.index.all() if one.depth > 4]:
            local.pool.index.remove(block)
        local.pool.index.tails.clear()
    again = local.open(other, 64)
    assert again.num_cached <= 128
    assert not again.sequence.evicted
    expected = masked_logits(model, kind, other, ())[-1]
    torch.testing.assert_close(read(local, again, other, 64), expected, rtol=0, atol=1e-4)


def test_a_whole_text_is_preferred_where_it_reaches_as_far():
    local, _ = made("llama")
    text = holed(local)
    read(local, text, IDS, 64)
    local.close(text)
    clean = type(text.sequence).begin(local.pool, IDS, 700, as_sealed=True)
    whole = Text(clean, local.model.config)
    read(local, whole, IDS, 64)
    local.close(whole)
    again = local.open(IDS, 64)
    assert not again.sequence.evicted
    assert again.num_cached == len(IDS) - 1
    local.close(again)


def test_a_block_that_another_text_holds_stays_for_that():
    local, _ = made("llama")
    text = local.open(IDS, 64)
    read(local, text, IDS[:SINCE], 40)
    other = local.open(IDS[:SINCE], 64)
    taken = local.pool.device_bytes - local.pool.free_block_bytes
    assert text.sequence.evict(2) == 0
    assert local.pool.device_bytes - local.pool.free_block_bytes == taken
    assert other.sequence.tables[0][2] is not None
    text.sequence.close()
    other.sequence.close()
    local.pool.check_integrity(0)


def test_stored_in_less_they_go_as_well():
    local, model = made("llama")
    formats = FormatPair.parse("int8")
    local.pool.storing = Storing(formats, formats, 64)
    text = holed(local)
    logits = read(local, text, IDS, 1)
    expected = masked_logits(model, "llama", IDS, PLACES)[-1]
    seen = masked_logits(model, "llama", IDS, ())[-1]
    assert (logits - expected).norm() < 0.5 * (logits - seen).norm()
    local.close(text)
    local.pool.check_integrity(0)
