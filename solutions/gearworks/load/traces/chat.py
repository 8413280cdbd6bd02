"""The trace chat.jsonl: 32 requests as a chat service gets them, and how they were drawn.

    python -m gearworks.load.traces.chat        # writes chat.jsonl again

Where the numbers come from:
- A user's message has 69.5 tokens on average, an answer 214.5, a conversation 2.0 turns:
  Zheng et al. 2023, "LMSYS-Chat-1M", arXiv 2309.11998, table 1 (a million conversations with 25
  models).
- Their spread: messages 69.83 ± 143.49 tokens in LMSYS-Chat-1M, answers 441.34 ± 410.91 in
  WildChat: Zhao et al. 2024, "WildChat", arXiv 2405.01470, table 1. Of the answers only the
  ratio is taken from there. Both are drawn from the lognormal distribution with that mean and
  deviation; a lognormal body is what Xiang et al. 2025, "ServeGen", arXiv 2505.09999, find for
  prompts.
- Conversations of 2.0 turns mean that one request of two goes on with one. Its prompt is the
  conversation so far, so it begins as that conversation's earlier prompt did.
- Gaps between arrivals have a gamma distribution with a shape below 1, burstier than a Poisson
  process: ServeGen, and Wang et al. 2024, "BurstGPT", arXiv 2401.17644. Services differ much,
  so the shape, 0.5, is a choice of ours.

What the machine decides: one request a second on average, more than SmolLM2 on two cores can
answer one by one; answers of at most 256 tokens, messages of at most 512, prompts of at most
1,024, which keep the whole within about two minutes.
"""

from random import Random

from gearworks.load.arrivals import arrivals
from gearworks.load.prompts import Lengths
from gearworks.load.trace import TRACES, TraceRequest, write_trace

REQUESTS, SEED = 32, 2024
MESSAGES = Lengths.from_moments(69.5, 69.5 * 143.49 / 69.83, most=512)
ANSWERS = Lengths.from_moments(214.5, 214.5 * 410.91 / 441.34, most=256)
RATE, BURSTINESS = 1.0, 0.5
GOES_ON = 0.5                                   # share of the requests that are not a first one
READING = 5.0                                   # seconds before somebody asks again, at least
LONGEST_PROMPT = 1024


def chat(random: Random) -> list[TraceRequest]:
    """The requests of the trace."""
    made: list[TraceRequest] = []
    for arrival, _ in zip(arrivals(RATE, BURSTINESS, random), range(REQUESTS)):
        message, answer = MESSAGES.draw(random), ANSWERS.draw(random)
        latest = {each.group: each for each in made}        # of each conversation
        read = [each for each in latest.values() if each.arrival + READING <= arrival
                and each.prompt_tokens + each.output_tokens + message <= LONGEST_PROMPT]
        if read and random.random() < GOES_ON:
            before = random.choice(read)
            group, past = before.group, before.prompt_tokens + before.output_tokens
        else:
            group, past = f"conversation {len(latest)}", 0
        made.append(TraceRequest(round(arrival, 3), answer, past + message, group=group,
                                 prefix_tokens=past + message))
    return made


if __name__ == "__main__":
    write_trace(TRACES / "chat.jsonl", chat(Random(SEED)))
