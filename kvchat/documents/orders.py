"""Words that speak to a program rather than to a reader: "ignore all previous instructions".

Only used to warn of text that a person cannot see. A document's text is fenced as data either way.
"""

import re

_ORDERS = re.compile(
    r"\b(?:ignore|disregard|forget|override|bypass)\b[^.\n]{0,60}"
    r"\b(?:instructions?|prompts?|rules|guidelines|(?:everything|all) (?:above|before))\b"
    r"|\b(?:system|developer) prompt\b"
    r"|\b(?:as|you are) an? (?:AI|LLM|language model|assistant)\b"
    r"|\bdo not (?:tell|reveal|mention|inform)\b[^.\n]{0,40}\b(?:user|reader|reviewer|anyone)\b"
    r"|\b(?:give|write) (?:only )?(?:a )?(?:positive|favou?rable) (?:review|rating|answer)\b"
    r"|\b(?:AI|LLM|language model|assistant)s?\b[^.\n]{0,30}\b(?:must|should|shall|has to)\b"
    r"|(?:이전|앞|위|기존|모든)[^.\n]{0,20}(?:지시|지침|명령|규칙|프롬프트)[^.\n]{0,20}(?:무시|잊|따르지)"
    r"|시스템\s*프롬프트"
    r"|(?:사용자|독자)에게[^.\n]{0,30}(?:알리지|말하지|밝히지)",
    re.IGNORECASE,
)


def order_in(text: str) -> str | None:
    """The first words of a text that are an order to a program, on one line; None without any."""
    found = _ORDERS.search(" ".join(text.split()))
    return found[0][:120] if found else None
