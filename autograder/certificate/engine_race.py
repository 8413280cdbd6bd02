"""Lets an assembled engine answer and race beside Hugging Face's, and tells what came out.

Run as a file, by an interpreter that has the engine's folder first on its path. Argument: the
folder of the benchmarks. The last thing that it does is to print one line of JSON:

    question, answer    what was asked, and what the engine said
    equal, tokens       how many of the answer's tokens are Hugging Face's, from its beginning
    threads             of all that ran
    lanes               name -> seconds of a decode step, the median of a few rounds in turns
    notes               what could not run, and why
"""

import json
import os
import statistics
import sys
import warnings

QUESTION = "Why does a clock need gears?"
TOKENS = 48
ROUNDS = 3


def main() -> None:
    news = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)                                            # what learners print is no news
    warnings.simplefilter("ignore")
    # behind the engine, so that its package is found first
    sys.path.append(sys.argv[1])
    news.write(json.dumps(_told()) + "\n")
    news.flush()
    os._exit(0)                            # a thread that a learner started keeps nothing alive


def _told() -> dict:
    import race
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    from gearworks import hub
    from gearworks.backends import load_model
    from gearworks.errors import GearworksError
    from gearworks.language_model import LanguageModel
    from gearworks.profiling.machine import available_cores

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    threads = available_cores()
    torch.set_num_threads(threads)
    folder, notes = hub.smollm2_folder(), []
    hf = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    messages = [{"role": "user", "content": QUESTION}]
    asked = AutoTokenizer.from_pretrained(folder).apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.inference_mode():
        said = hf.generate(**asked, max_new_tokens=TOKENS, do_sample=False, pad_token_id=0)
    expected = [*map(int, said[0])]

    ours = LanguageModel.load(folder)
    answer = ours.chat(messages, max_tokens=TOKENS)
    found = [*map(int, answer.prompt_ids), *map(int, answer.ids)]
    first = asked["input_ids"].shape[1]
    equal = _equal(expected, found) - first

    lanes = {"Hugging Face generate, float32": race.HuggingFace(hf),
             "this engine, NumPy": race.Ours(ours.model)}
    try:
        lanes["this engine, compiled"] = race.Ours(load_model(hub.smollm2_gguf(), "exact"))
    except GearworksError as error:
        notes.append(f"the compiled engine: {error}")
    llama, name = race.llama_cpp(hub.smollm2_gguf(), threads)
    if not isinstance(llama, race.Recorded):
        lanes[name] = llama
    for lane in lanes.values():
        lane.token()                                         # some compile, all warm up
    rounds = [{name: lane.token() for name, lane in lanes.items()} for _ in range(ROUNDS)]
    return {"question": QUESTION, "answer": answer.text, "equal": max(0, equal),
            "tokens": len(expected) - first, "threads": threads, "notes": notes,
            "lanes": {name: statistics.median(each[name] for each in rounds)
                      for name in lanes}}


def _equal(one: list[int], other: list[int]) -> int:
    """How many ids at the beginning of both are the same."""
    differ = [at for at, (a, b) in enumerate(zip(one, other)) if a != b]
    return differ[0] if differ else min(len(one), len(other))


if __name__ == "__main__":
    main()
