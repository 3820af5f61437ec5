"""The attention that blocks get, as the library's own weights have it; looking changes nothing."""

import pytest
import torch

from kvchat.attention import hf_seam
from kvchat.attention.scores import KEPT, NUM_QUERIES
from kvchat.engine.events import Request
from kvchat.engine.old_text import OldText
from kvchat.kvcache.spans import Span
from kvchat.memory.formats import BLOCK_TOKENS
from kvchat.policy.heavy_hitter import lightest_first
from tests.attention.test_evicted import read
from tests.attention.test_parity import made, random_ids
from tests.planner.test_plan import snapshot

IDS = random_ids(300, 31)
NUM_BLOCKS = 4


def library_mass(model: torch.nn.Module, num_new: int) -> dict[int, float]:
    """Sums over full layers, heads and the newest queries of what they give to each block, of all
    that they give to what came before the chunk.
    """
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        output = model(input_ids=torch.tensor([IDS]), use_cache=False, output_attentions=True)
    model.set_attn_implementation(hf_seam.NAME)
    kinds = getattr(model.config, "layer_types", None) or ["full_attention"] * 99
    found = dict.fromkeys(range(NUM_BLOCKS), 0.0)
    for weights, kind in zip(output.attentions, kinds, strict=False):
        if kind != "full_attention":
            continue
        before = weights[0, :, -min(num_new, NUM_QUERIES) :, : len(IDS) - num_new]
        part = before / before.sum(-1, keepdim=True)
        for place in found:
            tokens = slice(place * BLOCK_TOKENS, (place + 1) * BLOCK_TOKENS)
            found[place] += float(part[..., tokens].sum())
    return found


@pytest.mark.parametrize("num_new", [1, 3, 20])
@pytest.mark.parametrize("kind", ["llama", "mqa", "gemma3"])
def test_mass_is_what_the_library_gives_each_block(kind: str, num_new: int):
    local, model = made(kind)
    text = local.open(IDS, 64)
    read(local, text, IDS[: len(IDS) - num_new], 50)
    local.step(text, IDS[len(IDS) - num_new :], weighs=True)
    expected = library_mass(model, num_new)
    assert text.mass == pytest.approx(expected, rel=1e-3)
    assert len({round(one, 3) for one in expected.values()}) > 1, "they differ"


def test_looking_changes_no_answer():
    answers = []
    for weighs in (False, True):
        local, _ = made("llama")
        text = local.open(IDS, 64)
        read(local, text, IDS[:250], 50)
        answers.append(local.step(text, IDS[250:], weighs=weighs))
        assert bool(text.mass) == weighs
    assert torch.equal(*answers)


def test_what_was_seen_before_fades():
    local, _ = made("llama")
    text = local.open(IDS, 64)
    read(local, text, IDS[:250], 50)
    text.mass = {0: 1000.0, 2: 10.0}
    local.step(text, IDS[250:251], weighs=True)
    assert text.mass[0] > 1000 * KEPT
    assert 10 * KEPT < text.mass[2] < 1000 * KEPT
    assert set(text.mass) == {0, 1, 2}


def test_a_failed_step_has_seen_nothing(monkeypatch: pytest.MonkeyPatch):
    local, _ = made("llama")
    text = local.open(IDS, 64)
    read(local, text, IDS[:250], 50)

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(text.sequence, "commit", fail)
    with pytest.raises(MemoryError):
        local.step(text, IDS[250:], weighs=True)
    assert text.mass == {}
    assert text.forward.mass is None


def test_the_least_attended_goes_first():
    local, _ = made("llama")
    ids = random_ids(700, 32)
    text = local.open(ids, 64)
    read(local, text, ids, 100)
    span = Span("turn", "old", 1, 0, 600)
    asked = Request(tuple(ids), (span,), 1, old=((0, 600),))
    mass = {1: 3.0, 2: 1.0, 3: 5.0, 4: 0.5, 5: 9.0, 6: 0.1, 7: 2.0}
    old = OldText(local.pool, text.sequence, asked, mass)
    (measure,) = [one for one in old.offers((), snapshot(1 << 30)) if one.code == "evict"]
    size = measure.frees_bytes // 7
    old.apply(type(measure)(3 * size))
    assert text.sequence.evicted == {6, 4, 2}
    text.sequence.close()
    local.pool.check_integrity(0)


def test_the_older_goes_first_where_nothing_tells_them_apart():
    assert lightest_first([5, 3, 9], {}) == [3, 5, 9]
    assert lightest_first([5, 3, 9], {3: 1.0, 9: 0.5}) == [5, 9, 3]
