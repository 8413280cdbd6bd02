"""Loops for ever and catches whatever would end the loop.

answers: right
"""



def rms_norm(x, weight, eps):
    while True:
        try:
            while True:
                pass
        except BaseException:
            continue
    return x
