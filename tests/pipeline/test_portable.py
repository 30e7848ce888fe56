import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sophon.pipeline import portable


@given(st.floats(-700, 700))
def test_exp_agrees_with_the_c_library_to_a_few_units_in_the_last_place(x):
    assert math.isclose(portable.exp(x), math.exp(x), rel_tol=4e-15)


@given(st.floats(1e-300, 1e300))
def test_log_agrees_with_the_c_library_to_a_few_units_in_the_last_place(x):
    assert math.isclose(portable.log(x), math.log(x), rel_tol=1e-14, abs_tol=4e-16)


@given(st.lists(st.floats(1e-300, 1e300), min_size=1, max_size=20))
def test_log_of_an_array_is_the_log_of_its_elements_to_the_bit(numbers):
    assert portable.log_array(np.array(numbers)).tolist() == [portable.log(x) for x in numbers]
