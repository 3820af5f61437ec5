"""A reply that was cut goes on in the same message, as if it had never been cut."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from kvchat.chat.answer import LiveAnswer
from kvchat.chat.conversations import Conversations
from kvchat.chat.going_on import _are_text, begun
from kvchat.errors import RequestError
from kvchat.store.records import Generation
from tests.chat.test_conversations import answered

Start = Callable[..., Conversations]


def cut(conversations: Conversations, words: str = "") -> tuple[str, LiveAnswer]:
    """A chat whose one reply ended for want of room, not in the middle of a character: random
    weights end some by themselves.
    """
    engine = conversations._worker.engine
    assert engine
    for number in range(40):
        chat = conversations.new_chat()
        live = answered(conversations.ask(chat, f"Tell me story {number}. {words}"))
        (shown,) = conversations.history(chat)
        made = conversations._store.generation(shown.reply_hash or "", chat)
        if made is not None and live.finish_reason == "length":
            text = live.text.removeprefix(live.opening)
            if _are_text(engine.loaded.tokenizer, made.sampled_ids, text):
                return chat, live
    raise AssertionError("no reply is long enough")


def test_two_halves_are_the_whole(start: Start) -> None:
    conversations = start()
    chat, half = cut(conversations)
    conversations.apply({"max_new_tokens": 24})
    whole = answered(conversations.ask(conversations.new_chat(), half.question))
    assert whole.text.startswith(half.text)
    conversations.apply({"max_new_tokens": 12})
    live = conversations.go_on(chat, 1)
    assert live.text.startswith(half.text)  # from the first moment
    longer = answered(live)
    assert longer.text == whole.text
    (shown,) = conversations.history(chat)
    assert (shown.reply, shown.num_siblings) == (whole.text, 1)
    assert shown.figures
    assert whole.figures
    assert shown.figures["reply_tokens"] == whole.figures["reply_tokens"] > 12
    kept = conversations._store.generation(shown.reply_hash or "", chat)
    assert kept
    assert len(kept.sampled_ids) == whole.figures["reply_tokens"]
    assert longer.events().__next__()  # listeners can follow it like any other


def test_nothing_is_read_again_to_go_on(start: Start) -> None:
    conversations = start()
    chat, _ = cut(conversations, "word " * 200)
    live = answered(conversations.go_on(chat, 1))
    read = [event for event in live.events() if event["type"] == "prefilled"]
    assert read[-1]["tokens"] - read[-1]["reused_tokens"] <= 2


def test_a_stopped_reply_goes_on_and_the_chat_after_it(start: Start) -> None:
    conversations = start(max_new_tokens=300)
    chat = conversations.new_chat()
    live = conversations.ask(chat, "Tell me a story.")
    seen = 0
    while not live.text:
        seen = live.wait_change(seen, 10)
    live.stop()
    assert live.wait_ended(20)
    conversations.apply({"max_new_tokens": 5})
    longer = answered(conversations.go_on(chat, 1))
    assert longer.text.startswith(live.text)
    following = answered(conversations.ask(chat, "And then?"))
    assert following.turn == 2
    assert [one.reply for one in conversations.history(chat)] == [longer.text, following.text]
    assert conversations._store.verify() == []


def test_only_the_last_reply_goes_on(start: Start) -> None:
    conversations = start()
    chat = conversations.new_chat()
    answered(conversations.ask(chat, "one"))
    answered(conversations.ask(chat, "two"))
    with pytest.raises(RequestError) as refused:
        conversations.go_on(chat, 1)
    assert refused.value.code == "reply_not_last"
    assert conversations.live(chat) is None
    with pytest.raises(RequestError) as changed:
        conversations.go_on(chat, 2, "another")
    assert changed.value.code == "turn_changed"


def test_a_version_that_goes_on_leaves_the_others_alone(start: Start) -> None:
    conversations = start(temperature=1.0, seed=1)
    chat = conversations.new_chat()
    answered(conversations.ask(chat, "Tell me a story."))
    conversations.apply({"seed": 2})
    answered(conversations.regenerate(chat, 1))
    conversations.switch(chat, 1, 1)
    (first,) = conversations.history(chat)
    answered(conversations.go_on(chat, 1))
    (longer,) = conversations.history(chat)
    assert (longer.sibling, longer.num_siblings) == (1, 2)
    assert longer.reply
    assert longer.reply.startswith(first.reply or "?")


def test_ids_that_are_not_the_text_are_read_from_the_text(start: Start) -> None:
    """Another model's, half a character at the end, none at all, a control token that was typed."""
    conversations = start()
    engine = conversations._worker.engine
    assert engine
    tokenizer, store = engine.loaded.tokenizer, conversations._store
    chat = conversations.new_chat()
    question = store.append(chat, "user", "q")
    end = tokenizer.eos_token
    for ids in ((), (2**31 - 1,), (5,)):
        reply = store.append(chat, "assistant", f"half {end} a 한")
        made = Generation(reply.hash, ids, "length", {}, [], "m", 0.0)
        store.add_generation(chat, made)
        found = begun(store, chat, reply, tokenizer, "")
        assert tokenizer.eos_token_id not in found.ids
        assert tokenizer.decode(list(found.ids)) == reply.content
        store.fork(chat, question.hash)


def test_ids_that_no_tokenizer_has_are_never_read(start: Start) -> None:
    """Decoding skips them: the text is the same, but on a GPU a model that reads them is lost."""
    conversations = start()
    chat, half = cut(conversations)
    store = conversations._store
    (shown,) = conversations.history(chat)
    made = store.generation(shown.reply_hash or "", chat)
    assert made is not None
    store.add_generation(chat, replace(made, sampled_ids=(*made.sampled_ids, 2**32 - 1)))
    longer = answered(conversations.go_on(chat, 1))
    assert longer.error is None
    assert longer.text.startswith(half.text)


def test_a_reply_whose_head_the_template_wrote_goes_on_after_it(start: Start) -> None:
    conversations = start()
    engine = conversations._worker.engine
    assert engine
    template = engine.loaded.chat_template.replace("{% endif %}", "<think>\n{% endif %}")
    engine.loaded = replace(engine.loaded, chat_template=template)
    chat, half = cut(conversations)
    assert half.text.startswith("<think>\n")
    assert half.text.count("<think>") == 1
    longer = answered(conversations.go_on(chat, 1))
    assert longer.text.startswith(half.text)
    assert longer.text.count("<think>") == 1
    events = [one for one in longer.events() if one["type"] == "prefilled"]
    assert events[-1]["tokens"] - events[-1]["reused_tokens"] <= 2
