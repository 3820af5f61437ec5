import pytest

from kvchat.api.languages import preferred


@pytest.mark.parametrize(
    ("header", "lang"),
    [
        ("ko", "ko"),
        ("ko-KR,ko;q=0.9,en-US;q=0.8,en;q=0.7", "ko"),
        ("en-GB,en;q=0.9,ko;q=0.8", "en"),
        ("fr,ko;q=0.5", "ko"),
        ("en;q=0.3, ko;q=0.4", "ko"),
        ("KO-kr", "ko"),
        ("ko;q=0,en;q=0.1", "en"),
        ("en,ko", "en"),
        ("de,fr;q=0.9", None),
        ("kok", None),
        ("*", None),
        ("ko;q=banana", None),
        ("ko;q=nan", None),
        (";;,,q=", None),
        ("", None),
        (None, None),
    ],
)
def test_the_best_liked_of_ours(header, lang):
    assert preferred(header) == lang
