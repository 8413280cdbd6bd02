"""With torch; the threshold on logits."""

import math

import torch


def contrastive_decoding(expert, amateur, alpha=0.1):
    strong, weak = torch.from_numpy(expert), torch.from_numpy(amateur)
    difference = strong.log_softmax(0) - weak.log_softmax(0)
    return difference.masked_fill(strong < strong.max() + math.log(alpha),
                                  float("-inf")).numpy()
