"""How long a text of so many tokens is, in the words of a person: letters and pages.

Letters for a token are counted with the model's own tokenizer over the sentences that kvchat ships
in that language. Tokens for a page are those of the chat's own documents, where it has any; else a
rule of thumb, said to be one: the Korean test documents have about 950 letters on a page (2,300 of
the built-in model's tokens), the 50 pages of the FHS about 2,400.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

from kvchat.chat.rows import DocumentRow
from kvchat.wording import Language, table

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PAGE_LETTERS: dict[Language, int] = {"en": 2400, "ko": 950}


@lru_cache(maxsize=8)
def letters_per_token(tokenizer: "PreTrainedTokenizerBase", lang: Language) -> float:
    text = "\n".join(one[lang] for one in table().values())
    return len(text) / len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def tokens_per_page(documents: Iterable[DocumentRow]) -> float | None:
    """Of those that were read and counted; None where there is none."""
    read = [one for one in documents if one.num_tokens and one.num_pages == one.pages_done]
    num_pages = sum(one.num_pages for one in read)
    return sum(one.num_tokens for one in read) / num_pages if num_pages else None
