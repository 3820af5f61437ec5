"""Streams against the tokenizer's decoding of all ids at once: byte-level and SentencePiece."""

import json
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, trainers
from transformers import PreTrainedTokenizerFast

from kvchat.engine.detokenize import Detokenizer
from tests.tiny import TEXTS, tiny_tokenizer

HARD = "한국어 👩‍👩‍👧 ✅ é"
HALF = "\ufffd"


@cache
def sentencepiece() -> PreTrainedTokenizerFast:
    """As in Llama 2: blanks are '▁', one is put in front and taken off, rare letters are bytes."""
    names = [f"<0x{byte:02X}>" for byte in range(256)]
    inner = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    rules = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    inner.normalizer = normalizers.Sequence(rules)
    inner.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<unk>", "<s>", "</s>", *names], show_progress=False,
        limit_alphabet=60,
    )  # fmt: skip
    inner.train_from_iterator(TEXTS, trainer)
    plain = Tokenizer.from_str(inner.to_str())
    return PreTrainedTokenizerFast(
        tokenizer_object=_without_special_bytes(plain),
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
    )


def _without_special_bytes(inner: Tokenizer) -> Tokenizer:
    """The trainer counts the byte tokens as special; in a real model they are ordinary."""
    made: dict[str, Any] = json.loads(inner.to_str())
    made["added_tokens"] = made["added_tokens"][:3]
    return Tokenizer.from_str(json.dumps(made))


TOKENIZERS = [tiny_tokenizer, sentencepiece]
each_tokenizer = pytest.mark.parametrize("make", TOKENIZERS, ids=["byte-level", "sentencepiece"])


def whole(tokenizer: Any, ids: list[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


def streamed(tokenizer: Any, ids: list[int], stop: tuple[str, ...] = ()) -> tuple[str, Detokenizer]:
    """Pushed one by one; what must hold at every moment is checked on the way."""
    detokenizer = Detokenizer(tokenizer, stop)
    given = ""
    for token_id in ids:
        given += detokenizer.push(token_id)
        assert HALF not in given
        assert detokenizer.text == given
    given += detokenizer.flush()
    assert detokenizer.text == given
    assert detokenizer.flush() == ""
    return given, detokenizer


@each_tokenizer
@pytest.mark.parametrize(
    "text", [HARD, *TEXTS, "  two blanks", " one", "a  b\n\n  c ", "😀😀" * 30], ids=repr
)
def test_text_arrives_as_it_is(make: Any, text: str) -> None:
    ids = make().encode(text, add_special_tokens=False)
    assert streamed(make(), ids)[0] == text == whole(make(), ids)


@each_tokenizer
@settings(max_examples=150, deadline=None)
@given(
    text=st.text(
        st.characters(exclude_categories=["Cs"], exclude_characters=HALF + "▁"), max_size=80
    )
)
def test_any_unicode_arrives_as_the_tokenizer_decodes_it(make: Any, text: str) -> None:
    ids = make().encode(text, add_special_tokens=False)
    assert streamed(make(), ids)[0] == whole(make(), ids)


@each_tokenizer
@settings(max_examples=150, deadline=None)
@given(ids=st.lists(st.integers(0, 511), max_size=150))
def test_any_ids_give_their_text_without_broken_characters(make: Any, ids: list[int]) -> None:
    """Ids that a confused model may sample. Bytes that are no text are dropped."""
    tokenizer = make()
    given, _ = streamed(tokenizer, ids)
    expected = whole(tokenizer, ids).replace(HALF, "")
    if make is tiny_tokenizer:
        assert given == expected
    else:
        # A broken byte makes this decoder drop the whole characters just before it, too; they were
        # given already.
        assert len(given) >= len(expected)
        rest = iter(given)
        assert all(character in rest for character in expected)


@each_tokenizer
def test_a_reply_stopped_in_mid_character_ends_before_it(make: Any) -> None:
    ids = make().encode("좋아요 👩", add_special_tokens=False)
    for length in range(len(ids)):
        given, _ = streamed(make(), ids[:length])
        assert "좋아요 👩".startswith(given)
    assert streamed(make(), ids[:-1])[0] == "좋아요 "


def test_a_character_is_given_with_its_last_byte_and_not_later() -> None:
    tokenizer = tiny_tokenizer()
    ids = tokenizer.encode("뷁a", add_special_tokens=False)
    detokenizer = Detokenizer(tokenizer, ())
    assert [detokenizer.push(i) for i in ids] == ["", "", "뷁", "a"]


def test_a_good_character_after_much_garbage_is_seen() -> None:
    tokenizer = tiny_tokenizer()
    lone = tokenizer.encode("뷁", add_special_tokens=False)[1]
    ids = [lone] * 300 + tokenizer.encode("한 글", add_special_tokens=False)
    given, detokenizer = streamed(tokenizer, ids)
    assert given == "한 글"
    assert len(detokenizer._window) < 100


def test_special_tokens_are_skipped_and_ordinary_added_ones_shown() -> None:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tiny_tokenizer()._tokenizer,
        bos_token="<|endoftext|>",
        eos_token="<|im_end|>",
    )
    tokenizer.add_tokens([AddedToken("<think>", special=False)])
    text = "<|im_start|>a<think>한b<|im_end|>"
    assert streamed(tokenizer, tokenizer.encode(text))[0] == "a<think>한b"


def test_blanks_after_a_special_token_follow_the_first_token_rule_of_the_whole() -> None:
    tokenizer = sentencepiece()
    body = tokenizer.encode("The end", add_special_tokens=False)
    ids = [1, *body, 2, *body]
    assert streamed(tokenizer, ids)[0] == whole(tokenizer, ids) == "The end The end"


@pytest.mark.parametrize(
    ("stop", "given", "stopped"),
    [
        (("STOP",), "one ", True),
        (("STOP now",), "one ", True),
        (("xyz", "TOP"), "one S", True),
        (("w and then",), "one STOP no", True),
        (("then more",), "one STOP now and then", False),
        (("",), "one STOP now and then", False),
        (("o", "one"), "", True),
        (("hen!",), "one STOP now and then", False),
    ],
)
def test_stop_strings_span_tokens(stop: tuple[str, ...], given: str, stopped: bool) -> None:
    tokenizer = tiny_tokenizer()
    ids = tokenizer.encode("one STOP now and then", add_special_tokens=False)
    text, detokenizer = streamed(tokenizer, ids, stop)
    assert (text, detokenizer.stopped) == (given, stopped)


@settings(max_examples=150, deadline=None)
@given(
    text=st.text("ab한👩‍", max_size=40),
    stop=st.lists(st.text("ab한👩‍", min_size=1, max_size=4), max_size=3).map(tuple),
)
def test_nothing_of_a_stop_string_is_ever_given(text: str, stop: tuple[str, ...]) -> None:
    """The text up to the stop string that is complete first, with at most a character a token."""
    tokenizer = tiny_tokenizer()
    ids = [i for c in text for i in tokenizer.encode(c, add_special_tokens=False)]
    given, detokenizer = streamed(tokenizer, ids, stop)
    expected = next(
        (text[:end].removesuffix(max(found, key=len)) for end in range(len(text) + 1)
         if (found := [one for one in stop if text[:end].endswith(one)])), None,
    )  # fmt: skip
    assert detokenizer.stopped == (expected is not None)
    assert given == (text if expected is None else expected)


def test_nothing_comes_after_the_stop() -> None:
    tokenizer = tiny_tokenizer()
    detokenizer = Detokenizer(tokenizer, ("b",))
    ids = tokenizer.encode("abc", add_special_tokens=False)
    assert "".join(detokenizer.push(i) for i in ids) == "a"
    assert detokenizer.push(ids[0]) == detokenizer.flush() == ""
