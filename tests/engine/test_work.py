"""What is counted on a model's own modules, for each way of tying and of sharing."""

from collections.abc import Callable

import pytest
from torch import nn

from kvchat.engine.engine import Engine
from kvchat.engine.work import work_of
from tests.engine.test_engine import done, random_ids, request


class Small(nn.Module):
    def __init__(self, *, tied: bool, config: object = None) -> None:
        super().__init__()
        self.config = config
        self.table = nn.Embedding(100, 8)
        self.middle = nn.Linear(8, 16, bias=True)
        self.experts = nn.ModuleList([nn.Linear(8, 8, bias=False) for _ in range(4)])
        self.head = nn.Linear(8, 100, bias=False)
        if tied:
            self.head.weight = self.table.weight

    def get_output_embeddings(self) -> nn.Module:
        return self.head


class Routed:
    num_experts = 4
    num_experts_per_tok = 2


def size(model: nn.Module) -> int:
    return sum(one.numel() * one.element_size() for one in model.parameters())


def test_a_table_that_is_looked_up_is_not_read() -> None:
    model = Small(tied=False)
    work = work_of(model, size(model))
    assert work.step_weight_bytes == size(model) - 100 * 8 * 4
    assert work.token_params == 8 * 16 + 4 * 8 * 8
    assert work.head_params == 800


def test_a_tied_table_is_read_as_the_head() -> None:
    model = Small(tied=True)
    work = work_of(model, size(model))
    assert work.step_weight_bytes == size(model)
    assert (work.token_params, work.head_params) == (8 * 16 + 4 * 8 * 8, 800)


def test_of_experts_those_count_that_a_token_is_sent_to() -> None:
    model = Small(tied=False, config=Routed())
    work = work_of(model, size(model))
    assert work.token_params == 8 * 16 + 2 * 8 * 8
    assert work.step_weight_bytes == size(model) - 100 * 8 * 4 - 2 * 8 * 8 * 4


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_a_reply_says_what_it_read_and_computed(
    make_engine: Callable[..., Engine], kind: str
) -> None:
    engine = make_engine(kind)
    figures = done(list(engine.run(request(random_ids(200, 3))))).figures
    steps = figures.reply_tokens - 1
    assert figures.decode_bytes >= steps * engine.work.step_weight_bytes > 0
    assert figures.prefill_flops >= 2 * engine.work.token_params * 200
    assert figures.prefill_flops_per_s == figures.prefill_flops / figures.prefill_s
    assert figures.decode_bytes_per_s == figures.decode_bytes / figures.decode_s
    assert figures.prefill_tokens_per_s == 200 / figures.prefill_s
