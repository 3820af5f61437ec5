"""What a change of settings would mean, as the drawer shows it before anything is applied."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kvchat.chat.reach import PAGE_LETTERS, letters_per_token, tokens_per_page
from kvchat.errors import KVChatError, ModelError
from kvchat.memory.formats import FormatPair
from kvchat.settings import SCHEMA, Settings
from kvchat.ui.forms import judged
from kvchat.ui.words import problem
from kvchat.wording import Language

if TYPE_CHECKING:
    from kvchat.chat.conversations import Conversations
    from kvchat.engine.foretold import Foretold


def consequences(
    conversations: "Conversations", changes: Mapping[str, object], lang: Language, chat: str = ""
) -> dict[str, Any]:
    """`now` and `then` side by side, when each change takes effect, and what the formats cost this
    model. `chat`: whose documents pages are told by, and what would be left out of it. Where it
    cannot be foretold `problem` says why. Raises SettingsError for wrong values.
    """
    held = conversations.held
    settings = held.with_changes(changes)
    found: dict[str, Any] = {
        "effects": {name: SCHEMA[name].applies for name in changes},
        "fidelity": _fidelity(conversations, settings, lang),
    }
    try:
        now, then = held.foretell(held.now), held.foretell(settings)
        reach = _reach(conversations, lang, chat)
    except KVChatError as error:
        return found | {"problem": problem(error, lang)}
    found |= {"now": _row(now) | reach(now.tokens), "then": _row(then) | reach(then.tokens)}
    if chat and then.tokens < now.tokens:
        found["chat"] = _left_out(conversations, settings, lang, chat)
    return found


def _left_out(
    conversations: "Conversations", settings: Settings, lang: Language, chat: str
) -> dict[str, Any] | None:
    try:
        foreseen = conversations.foreseeing.left_out(chat, settings)
    except KVChatError as error:
        return {"problem": problem(error, lang)}
    return asdict(foreseen) if foreseen is not None else None


def _row(foretold: "Foretold") -> dict[str, Any]:
    return {
        "tokens": foretold.tokens,
        "fits": foretold.fits.row(),
        "binding": foretold.binding,
        "allowed_bytes": foretold.allowed_bytes,
        "short_by_bytes": foretold.short_by_bytes,
        "token_bytes": round(foretold.token_bytes),
        "least_token_bytes": round(foretold.least_token_bytes),
        "footprint": asdict(foretold.footprint) | {"total": foretold.footprint.total},
    }


def _reach(
    conversations: "Conversations", lang: Language, chat: str
) -> Callable[[int], dict[str, int]]:
    """What tokens of the model that runs are, in letters and in pages of a document; estimates.
    `page_tokens`: of the chat's own documents, 0 where `page_letters` are a rule of thumb. Raises
    ModelError where no model runs any more.
    """
    engine = conversations.loading.engine
    if engine is None:  # let go of meanwhile
        raise ModelError("model_still_loading")
    letters = letters_per_token(engine.loaded.tokenizer, lang)
    measured = None
    with suppress(KVChatError):  # the chat may be gone
        measured = tokens_per_page(conversations.documents(chat)) if chat else None
    a_page = measured or PAGE_LETTERS[lang] / letters
    return lambda tokens: {
        "letters": _rounded(tokens * letters),
        "pages": _rounded(tokens / a_page),
        "page_tokens": round(measured or 0),
        "page_letters": PAGE_LETTERS[lang],
    }


def _rounded(count: float) -> int:
    """To two figures that count: it is an estimate, and looks like one."""
    step = 10 ** max(0, len(str(int(count))) - 2)
    return int(round(count / step) * step)


def _fidelity(
    conversations: "Conversations", settings: Settings, lang: Language
) -> list[dict[str, Any]]:
    """Of what texts are stored in, and of the least that they may be when memory is short."""
    known = conversations.verdicts()
    stage = conversations.status()["formats"]["stage"]
    names = dict.fromkeys((settings.seal_format, settings.floor_format))
    pairs = {str(FormatPair.parse(name)): name for name in names}
    return [
        {"pair": pair, "name": name} | judged(name, known, settings.allow_unproven, stage, lang)
        for pair, name in pairs.items()
        if FormatPair.parse(name).hot_tokens
    ]
