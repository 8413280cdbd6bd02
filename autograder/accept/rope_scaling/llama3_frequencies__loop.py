"""Hand by hand, by its wavelength, in three cases."""

import math

import numpy as np


def llama3_frequencies(frequencies, factor, low_freq_factor, high_freq_factor,
                       original_context):
    out = []
    for frequency in frequencies.tolist():
        wavelength = 2 * math.pi / frequency
        if wavelength < original_context / high_freq_factor:
            out.append(frequency)
        elif wavelength > original_context / low_freq_factor:
            out.append(frequency / factor)
        else:
            smooth = ((original_context / wavelength - low_freq_factor)
                      / (high_freq_factor - low_freq_factor))
            out.append((1 - smooth) * frequency / factor + smooth * frequency)
    return np.array(out, dtype=np.float32)
