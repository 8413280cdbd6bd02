"""All three cases at once, chosen by where."""

import numpy as np


def llama3_frequencies(frequencies, factor, low_freq_factor, high_freq_factor,
                       original_context):
    turns = original_context * frequencies / np.float32(2 * np.pi)
    share = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor)
    mixed = share * frequencies + (1 - share) * frequencies / factor
    slow = np.where(turns <= low_freq_factor, frequencies / factor, mixed)
    return np.where(turns >= high_freq_factor, frequencies, slow)
