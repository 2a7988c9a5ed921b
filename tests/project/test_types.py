"""The README's examples, read by pyright with its defaults; `make lint` reads ``tests/user_code.py``."""

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.end_to_end
def test_the_examples_of_the_readme_have_no_type_errors(tmp_path):
    pytest.importorskip("pyright", reason="pyright is in the extra dev")
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S)
    assert examples
    for i, text in enumerate(examples):
        (tmp_path / f"example{i}.py").write_text(text, "utf-8")
    (tmp_path / "pyrightconfig.json").write_text(f'{{"extraPaths": ["{ROOT}"]}}', "utf-8")
    command = [sys.executable, "-m", "pyright", "--project", str(tmp_path), "--pythonpath", sys.executable]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
