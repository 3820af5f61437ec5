"""`bench documents`, the part about finding: figures of a folder whose answers are known."""

import json
from pathlib import Path

import pytest

from kvchat import cli
from kvchat.bench.finding import measured, questions
from kvchat.documents.reader import Page, ReadDocument
from tests.documents.small_pdf import write_pdf
from tests.tiny import tiny_folder

HEAD = "id\tfile\tquestion\tpdf_page_1based"
PAGES = (
    "The pump of the garden runs at night.",
    "The lamp of the harbour is green.",
    "The clock of the tower is slow.",
)


def table(folder: Path, *rows: str) -> Path:
    file = folder / "QA.tsv"
    file.write_text("\n".join([HEAD, *rows]) + "\n", encoding="utf-8")
    return file


def document(sha: str, name: str, *pages: str) -> ReadDocument:
    return ReadDocument(
        sha * 64, name, tuple(Page(n, None, p, "text") for n, p in enumerate(pages, 1))
    )


def test_hits_ranks_and_refusals_are_counted_by_language(tmp_path: Path) -> None:
    file = table(
        tmp_path,
        "a\ten.pdf\tWhich colour has the lamp of the harbour?\t2",
        "b\ten.pdf\tWhen does the pump run?\t3",  # wrong on purpose: it is page 1
        "c\ten.pdf\tWho won the football world cup?\t",
        "d\tko.pdf\t정원의 물은 언제 주나요?\t1|2",
        "e\tmissing.pdf\tWhat is this?\t1",
    )
    documents = {
        "en.pdf": document("a", "en.pdf", *PAGES),
        "ko.pdf": document("b", "ko.pdf", "서문", "정원사는 월요일마다 정원에 물을 준다."),
    }
    rows = list(measured(questions(file), documents, lambda text: len(text.split()) * 30))
    assert [(row["among"], row["language"]) for row in rows] == [
        ("alone", "en"), ("alone", "ko"), ("together", "en"), ("together", "ko"),
    ]  # fmt: skip
    english, korean = rows[:2]
    assert (english["questions"], english["hits"], english["missed"]) == (2, 1, ["b"])
    assert english["mrr"] == 0.5
    assert (english["unanswerable"], english["refused"], english["brought"]) == (1, 1, [])
    assert (korean["questions"], korean["hits"], korean["mrr"]) == (1, 1, 1.0)


def test_a_person_calls_it(
    tmp_path: Path, data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(tiny_folder("llama", tmp_path / "tiny"))
    folder = tmp_path / "papers"
    folder.mkdir()
    words = ["bench", "documents", "--model", model, "--documents", str(folder)]
    assert cli.main(words) == 1
    assert "QA.tsv" in capsys.readouterr().err
    write_pdf(folder / "a.pdf", [[(50.0, 700.0, page)] for page in PAGES])
    table(folder, "a\ta.pdf\tWhich colour has the lamp of the harbour?\t2")
    assert cli.main([*words, "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = [row for row in rows if row.get("part") == "finding"]
    assert [(row["hits"], row["questions"], row["mrr"]) for row in found] == [(1, 1, 1.0)] * 2
    assert cli.main([*words, "--lang", "ko"]) == 0
    assert "1개 중 1개" in capsys.readouterr().out
