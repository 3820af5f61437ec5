"""PDFs written by hand, byte by byte: what the reader's tests need without any file of others."""

from collections.abc import Sequence
from pathlib import Path

Line = tuple[float, float, str]
"""x and y in points from the lower left corner, and the text."""


def write_pdf(
    path: Path,
    pages: Sequence[Sequence[Line]],
    *,
    size: float = 10,
    rotate: int = 0,
    first_label: str | None = None,
    picture: bool = False,
) -> Path:
    """A PDF with one font that maps every code to itself, so that any BMP text can be written.

    `picture` lays an image over each page; `first_label` is a /PageLabels entry for page 1.
    A page that is turned is shown upright: x and y count on the page as it is shown.
    """
    objects: list[bytes] = []

    def add(body: bytes) -> int:
        objects.append(body)
        return len(objects)

    catalog, tree = add(b""), add(b"")
    font = _font(add)
    image = add(_stream(b"\x80", "/Type /XObject /Subtype /Image /Width 1 /Height 1 "
                        "/ColorSpace /DeviceGray /BitsPerComponent 8"))  # fmt: skip
    kids = []
    for lines in pages:
        drawn = "".join(
            f"BT /F {size} Tf {x} {y} Td <{_hex(text)}> Tj ET\n" for x, y, text in lines
        )
        content = ("q 612 0 0 792 0 0 cm /I Do Q\n" if picture else "") + _UPRIGHT[rotate] + drawn
        stream = add(_stream(content.encode()))
        kids.append(
            add(
                f"<< /Type /Page /Parent {tree} 0 R /MediaBox [0 0 612 792] /Rotate {rotate} "
                f"/Contents {stream} 0 R /Resources << /Font << /F {font} 0 R >> "
                f"/XObject << /I {image} 0 R >> >> >>".encode()
            )
        )
    labels = f"/PageLabels << /Nums [0 << {first_label} >>] >>" if first_label else ""
    objects[catalog - 1] = f"<< /Type /Catalog /Pages {tree} 0 R {labels} >>".encode()
    listed = " ".join(f"{kid} 0 R" for kid in kids)
    objects[tree - 1] = f"<< /Type /Pages /Count {len(kids)} /Kids [{listed}] >>".encode()
    path.write_bytes(_file(objects, catalog))
    return path


_UPRIGHT = {
    0: "", 90: "0 1 -1 0 612 0 cm\n", 180: "-1 0 0 -1 612 792 cm\n", 270: "0 -1 1 0 0 792 cm\n"
}  # fmt: skip


def _font(add) -> int:
    cmap = (
        b"/CIDInit /ProcSet findresource begin begincmap /CMapName /A def "
        b"1 begincodespacerange <0000> <FFFF> endcodespacerange "
        b"1 beginbfrange <0000> <FFFF> <0000> endbfrange endcmap end"
    )
    unicode_map = add(_stream(cmap))
    about = add(
        b"<< /Type /FontDescriptor /FontName /A /Flags 4 /FontBBox [0 -200 500 800] /ItalicAngle 0 "
        b"/Ascent 800 /Descent -200 /CapHeight 700 /StemV 80 >>"
    )
    cid = add(
        f"<< /Type /Font /Subtype /CIDFontType2 /BaseFont /A /DW 500 /FontDescriptor {about} 0 R "
        "/CIDSystemInfo << /Registry (Adobe) /Ordering (Identity) /Supplement 0 >> >>".encode()
    )
    return add(
        f"<< /Type /Font /Subtype /Type0 /BaseFont /A /Encoding /Identity-H "
        f"/DescendantFonts [{cid} 0 R] /ToUnicode {unicode_map} 0 R >>".encode()
    )


def _hex(text: str) -> str:
    return text.encode("utf-16-be").hex()


def _stream(body: bytes, entries: str = "") -> bytes:
    return f"<< {entries} /Length {len(body)} >>\nstream\n".encode() + body + b"\nendstream"


def _file(objects: Sequence[bytes], catalog: int) -> bytes:
    out, offsets = b"%PDF-1.7\n", []
    for number, body in enumerate(objects, 1):
        offsets.append(len(out))
        out += f"{number} 0 obj\n".encode() + body + b"\nendobj\n"
    table = "".join(f"{offset:010d} 00000 n \n" for offset in offsets)
    return (
        out
        + (
            f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}"
            f"trailer << /Size {len(objects) + 1} /Root {catalog} 0 R >>\n"
            f"startxref\n{len(out)}\n%%EOF\n"
        ).encode()
    )
