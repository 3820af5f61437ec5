"""What reading files takes: a row a file, and one for all of them."""

from kvchat.bench import reading
from kvchat.bench.telling import told
from tests.documents.small_pdf import write_pdf


def test_every_file_has_a_row_and_all_together_one(tmp_path):
    for name in ("a.pdf", "b.pdf"):
        write_pdf(tmp_path / name, [[(72, 700, f"words of page {n}")] for n in range(40)])
    (tmp_path / "broken.pdf").write_bytes(b"%PDF-1.7\nnothing")
    (tmp_path / "one.txt").write_text("one part only")
    (tmp_path / "table.tsv").write_text("no document")
    rows = list(reading.of_files(tmp_path))
    assert [row["file"] for row in rows[:-1]] == ["a.pdf", "b.pdf", "one.txt"]
    assert [row["pages"] for row in rows[:-1]] == [40, 40, 1]
    assert all(row["outcome"] == "read" and row["page_ms"] > 0 for row in rows[:-1])
    last = rows[-1]
    assert (last["files"], last["pages"]) == (4, 81)
    assert last["children_bytes"] > 10_000_000
    for row in rows:
        for lang in ("en", "ko"):
            assert "{" not in told(row, lang)


def test_an_empty_folder_has_nothing_to_tell(tmp_path):
    assert list(reading.of_files(tmp_path)) == []
