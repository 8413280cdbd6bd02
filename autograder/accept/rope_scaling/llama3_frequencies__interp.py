"""With NumPy's interpolation for the share that is kept."""

import numpy as np


def llama3_frequencies(frequencies, factor, low_freq_factor, high_freq_factor,
                       original_context):
    turns = original_context * frequencies.astype(np.float64) / (2 * np.pi)
    kept = np.interp(turns, [low_freq_factor, high_freq_factor], [0, 1])
    return (frequencies * (kept + (1 - kept) / factor)).astype(np.float32)
