"""The question that HPSv3 was trained to answer, out of its authors' package.

The package is read, not imported: its code needs a version of transformers of its own. Needs
neither numpy nor torch.
"""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

from spotlight.errors import MissingDependency, ScoringError
from spotlight.types import Prompt

MARK = "<|"
"""What the model's own marks begin with; no prompt may have it."""
_PACKAGE = "hpsv3"
_FILE = "dataset/data_collator_qwen.py"
_PARTS = ("INSTRUCTION", "prompt_with_special_token")
"""What that file calls the two parts of the question."""
_BLANK = "{text_prompt}"


def hpsv3_question(prompt: Prompt) -> str:
    """What is asked of an image of a prompt.

    Raises `MissingDependency` without the package, and `ScoringError` if it has no such question.
    """
    found = find_spec(_PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise MissingDependency(
            "the `hpsv3` reward asks its authors' question, which is in their package;"
            f" pip install --no-deps {_PACKAGE}"
        )
    file = Path(found.submodule_search_locations[0]) / _FILE
    try:
        texts = _texts(ast.parse(file.read_text(encoding="utf-8")))
    except (OSError, SyntaxError, ValueError) as error:
        raise ScoringError(f"{file} cannot be read ({error}); install {_PACKAGE} again") from error
    question = "".join(texts.get(part, "") for part in _PARTS)
    if question.count(_BLANK) != 1:
        raise ScoringError(f"{file} has no question with {_BLANK}; install {_PACKAGE}==1.0.0")
    return question.replace(_BLANK, prompt.text)


def _texts(module: ast.Module) -> dict[str, str]:
    """The texts that a module gives names to."""
    return {
        target.id: node.value.value
        for node in module.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
