"""What the program of a step is made of, and the records that travel with it.

An instruction is one operator of one layer: which, with what weights, and where in the step's
memory its input and its output are. Where families differ, their programs do (`program`): the
step itself (`step`) knows operators, not models.
"""

import numpy as np

# These every program has. Those up to GELU take rows one by one and leave them ready for a
# product, or are that product
EMBED, MULTIPLY, TURN, ATTEND, NORM, READY, SWIGLU = range(7)
# And these some: `family_step` has them, which is compiled only where it is needed
LAYER_NORM, GEGLU, GELU = range(7, 10)
ADD, ADD_NORM, NORM_PART = range(10, 13)                                # Gemma, OLMo-2, GPT-2
ROUTE, GATHER, MULTIPLY_EXPERTS, GATE_EXPERTS, COMBINE = range(13, 18)  # mixtures of experts
LATENT_KEYS, ABSORB, UNFOLD = range(18, 21)                             # DeepSeek

# What an instruction does, and to what. layer: its number in the caches. matrix: the one that
# it multiplies by, or that its result is made ready for; of experts, the first. source, target:
# where rows begin in the step's memory, or NONE for the array of logits; a row every `_stride`;
# of a turn, the target is where a row's cosines lie, and its sines behind them. size: numbers
# of a row; of a product, whether a single row has copies; of a turn, whether heads turn at all.
# weight, second: a norm's and its bias, a bias, the norms of queries and keys, sinks; where
# they begin in the model's array, or NONE. add_to: rows that a product is added to, or NONE.
# window: of attention, 0 for all tokens. wanted: whether it is about the R rows whose logits
# are wanted. scale: of embeddings and queries, else 1. cap: the limit of scores, or of a
# product, that is neared but never reached; 0 for none. What else some mean by these is said
# where they are done.
INSTRUCTION = np.dtype([(name, np.int64) for name in (
    "op", "layer", "matrix", "source", "source_stride", "target", "target_stride", "size",
    "weight", "second", "add_to", "window", "wanted")]
    + [("scale", np.float32), ("cap", np.float32)])

# value_dim: numbers of a value, as many as of a key but for latents. quantize: whether
# activations become bytes before a product; alike: whether a row alone is computed as one of
# several is, to the last bit
SHAPE = np.dtype([("heads", np.int64), ("kv_heads", np.int64), ("head_dim", np.int64),
                  ("value_dim", np.int64), ("quantize", np.int64), ("alike", np.int64),
                  ("eps", np.float32), ("unused", np.float32)])

# Where arrays that several instructions use begin. codes: activations in bytes, in words; the
# rest in float32: their scales and sums, a thread's scores and scratch.
PLACES = np.dtype([(name, np.int64) for name in (
    "codes", "scales", "sums", "scores", "scores_of_thread", "scores_of_head", "scratch")])

# What only some families need. experts, per_token, …: as in `config.ExpertsConfig`; sigmoid:
# whether it makes the weights of the scores. A visit is one token's at one expert, and visits
# go by expert: chosen, gates, visit: where the k of each token begin in the step's memory; row:
# of each visit its token; ends: of each expert the visit after its last; ranking, taken,
# strength: of one token's choice. still, value, rank: as n, value and r in `families.deepseek`;
# neighbours: whether rows of a pair are.
FAMILY = np.dtype([(name, np.int64) for name in (
    "experts", "per_token", "normalize", "sigmoid", "groups", "kept_groups", "best_of_group",
    "chosen", "gates", "visit", "row", "ends", "ranking", "taken", "strength", "still", "value",
    "rank", "neighbours")] + [("scale", np.float32), ("unused", np.float32)])
