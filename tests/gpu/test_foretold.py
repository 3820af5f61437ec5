"""On a card: what torch's counters say of each step, against what was foretold for it."""

import pytest
import torch

from kvchat.device.memory import probe_for
from kvchat.device.peak import peak_of
from kvchat.kvcache.pool import Storing
from kvchat.memory.formats import FormatPair
from tests.engine.test_steps import Planning, assert_foretold
from tests.gpu.test_on_a_card import card as card
from tests.gpu.test_on_a_card import made

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("stored", ["fp", "int8", "int4"])
def test_every_step_is_foretold_and_within_ten_percent_once_measured(
    stored: str, card: torch.device
) -> None:
    local = made("llama", card)
    local.pool.storing = Storing(FormatPair.parse(stored), FormatPair.parse(stored))
    peak = peak_of(card)
    assert peak is not None
    assert_foretold(Planning(local, torch.float16, peak), local, (256, 512), 1900)


def test_what_torch_keeps_unused_is_told_apart(card: torch.device) -> None:
    before = probe_for(card).read()
    held = torch.empty(256 * 2**20, dtype=torch.uint8, device=card)
    during = probe_for(card).read()
    assert during.allocated - before.allocated >= held.numel()
    del held
    after = probe_for(card).read()
    assert after.cached - before.cached >= 128 * 2**20
