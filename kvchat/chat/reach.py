"""How long a text of so many tokens is, in the words of a person: letters and pages.

Letters for a token are counted with the model's own tokenizer over the sentences that kvchat ships
in that language. Letters for a page: the Korean test documents have about 950 on a page (2,300 of
the built-in model's tokens), the 50 pages of the FHS about 2,400. Both are shown as estimates.
"""

from functools import lru_cache
from typing import TYPE_CHECKING

from kvchat.wording import Language, table

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PAGE_LETTERS: dict[Language, int] = {"en": 2400, "ko": 950}


@lru_cache(maxsize=8)
def letters_per_token(tokenizer: "PreTrainedTokenizerBase", lang: Language) -> float:
    text = "\n".join(one[lang] for one in table().values())
    return len(text) / len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
