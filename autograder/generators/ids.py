"""Token ids, of one digit and of several: 1 and 11, 12 and 1, 2 are different things."""

from hypothesis import strategies as st

IDS = (1, 2, 0, 11, 12, 21, 3, 10, 111, 112, 211, 121, 1211, 50256, 151935)


@st.composite
def words(draw, most: int = 8, different: int = 3) -> list[int]:
    """Ids of which few are different, so that pairs, runs and repetitions are likely."""
    letters = draw(st.lists(st.sampled_from(IDS), min_size=1, max_size=different, unique=True))
    return draw(st.lists(st.sampled_from(letters), max_size=most))
