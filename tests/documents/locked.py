"""PDFs locked with a password, made by another program (qpdf, through pikepdf)."""

from pathlib import Path

import pikepdf


def lock(path: Path, user: str, *, owner: str = "owner", revision: int = 6) -> Path:
    """The same file locked, beside it. Revision 6 is AES-256, 4 is AES-128, 3 is RC4."""
    target = path.with_name(f"locked-{path.name}")
    with pikepdf.open(path) as pdf:
        if revision == 6:
            how = pikepdf.Encryption(user=user, owner=owner, R=6)
        else:
            how = pikepdf.Encryption(
                user=user, owner=owner, R=revision, aes=revision == 4, metadata=revision == 4
            )
        pdf.save(target, encryption=how)
    return target
