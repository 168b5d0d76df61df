"""The words that describe the lease of a Python program: its name, and the words by which its memory is learned."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def asker(called: str) -> str:
    """Return the name of a lease's task, from the name of the program."""
    return f"lease of {called}"


def caller() -> tuple[str, Sequence[str]]:
    """Return the name of this program, and the words by which its memory is learned: the script with its arguments, or
    the notebook.
    """
    shell = sys.modules.get("IPython")
    here = os.getcwd()
    if shell is not None and (kernel := shell.get_ipython()) is not None:
        notebook = os.environ.get("JPY_SESSION_NAME") or kernel.user_ns.get("__vsc_ipynb_file__") or here
        if hasattr(kernel, "kernel"):
            return "a notebook", ["notebook", str(notebook)]
        return "an IPython prompt", ["ipython", here]
    main = sys.modules.get("__main__")
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if "_pytest" in sys.modules and os.environ.get("PYTEST_VERSION"):
        return "pytest", ["pytest", here]
    if spec is not None and spec.name:
        module = spec.name.removesuffix(".__main__")
        return module, [sys.executable, "-m", module, *sys.argv[1:]]
    if file:
        return os.path.basename(file), [sys.executable, os.path.abspath(file), *sys.argv[1:]]
    return "a Python prompt", ["python-prompt", here]
