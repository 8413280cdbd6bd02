"""Expanded by torch, block by block."""

import torch


def int4_matvec(words, scales, minimums, x, y):
    inputs = torch.tensor(x)
    for block in range(len(words)):
        word = torch.tensor(words[block].astype("int64"))      # (groups, 4, 16)
        codes = torch.stack([word >> shift & 15 for shift in (0, 8, 16, 24, 4, 12, 20, 28)],
                            dim=2)                             # (groups, 4, 8, 16)
        codes = codes.reshape(len(word), 32, 16).float()
        weights = (codes * torch.tensor(scales[block])[:, None]
                   + torch.tensor(minimums[block])[:, None])   # (groups, 32, 16)
        y[16 * block:16 * block + 16] = (weights.reshape(-1, 16).T @ inputs).numpy()
