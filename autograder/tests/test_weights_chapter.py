"""The hashes that chapter 3 shows at its finish line are the pinned ones.
A tenth of a second."""

import ast
import hashlib
import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_chapter_shows_the_pinned_hashes():
    text = (ROOT / "book" / "chapters" / "03_weights.md").read_text(encoding="utf-8")
    shown = ast.literal_eval(re.search(r"^PINNED = (\{.*?\n\})$", text, re.M | re.S)[1])
    pins = json.loads((ROOT / "solutions" / "tests" / "data"
                       / "smollm2_tensor_sha256.json").read_text(encoding="utf-8"))
    digests = {name: tensor["sha256"] for name, tensor in pins["tensors"].items()}
    together = hashlib.sha256("".join(digests[name]
                                      for name in sorted(digests)).encode()).hexdigest()
    digests["all of them"] = together
    assert len(shown) >= 4 and shown == {name: digests[name][:16] for name in shown}
