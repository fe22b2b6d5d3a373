import copy
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchport.ir.shape import Shape, contiguous_strides, dtype_name

SIZES = st.lists(st.integers(0, 4), max_size=5).map(tuple)


@st.composite
def layouts(draw):
    """Sizes with the strides of a permuted, possibly expanded tensor."""
    sizes = draw(SIZES)
    order = draw(st.permutations(range(len(sizes))))
    strides = torch.empty(tuple(sizes[i] for i in order)).stride()
    permuted = [0] * len(sizes)
    for position, i in enumerate(order):
        permuted[i] = 0 if draw(st.booleans()) and sizes[i] == 1 else strides[position]
    return sizes, tuple(permuted)


def test_equal_shapes_are_one_object():
    assert Shape(torch.float32, (3, 4)) is Shape(torch.float32, [3, 4], (4, 1), (False, False))


@pytest.mark.parametrize(
    "other",
    [
        Shape(torch.float64, (3, 4)),
        Shape(torch.float32, (4, 3)),
        Shape(torch.float32, (3, 4), (1, 3)),
        Shape(torch.float32, (3, 4), None, (True, False)),
    ],
)
def test_shapes_that_differ_in_anything_are_not_equal(other):
    assert Shape(torch.float32, (3, 4)) != other


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("f32[]", Shape(torch.float32, ())),
        ("i64[0]", Shape(torch.int64, (0,))),
        ("bf16[3, 4]", Shape(torch.bfloat16, (3, 4))),
        ("b8[3, 4]{1, 3}", Shape(torch.bool, (3, 4), (1, 3))),
        ("c64[?3, 4]", Shape(torch.complex64, (3, 4), None, (True, False))),
        ("float8_e4m3fn[2]", Shape(torch.float8_e4m3fn, (2,))),
    ],
)
def test_a_shape_prints_its_dtype_sizes_and_unusual_strides(text, shape):
    assert text == repr(shape)


@given(SIZES)
def test_default_strides_are_those_of_empty(sizes):
    assert torch.empty(sizes).stride() == contiguous_strides(sizes)


@given(layouts())
def test_contiguity_and_storage_are_as_torch_has_them(layout):
    sizes, strides = layout
    tensor = torch.empty_strided(sizes, strides, dtype=torch.int16)
    shape = Shape(torch.int16, sizes, strides)
    assert tensor.is_contiguous() == shape.is_contiguous
    assert tensor.untyped_storage().nbytes() == 2 * shape.storage_numel
    assert tensor.numel() == shape.numel
    assert tensor.numel() * 2 == shape.nbytes


def test_a_shape_cannot_be_changed():
    with pytest.raises(AttributeError, match="Shape is immutable; cannot set 'sizes'"):
        Shape(torch.float32, (3,)).sizes = (4,)


def test_sizes_and_strides_must_be_as_many():
    with pytest.raises(ValueError, match="2 sizes, 1 strides and 2 symbolic flags; they must be as many"):
        Shape(torch.float32, (3, 4), (1,))


def test_copies_and_pickles_are_the_same_object():
    shape = Shape(torch.float32, (3, 4), (1, 3), (False, True))
    assert shape is copy.deepcopy(shape)
    assert shape is pickle.loads(pickle.dumps(shape))


def test_every_dtype_has_a_name_of_its_own():
    dtypes = {x for x in vars(torch).values() if isinstance(x, torch.dtype)}
    assert len(dtypes) == len({dtype_name(x) for x in dtypes})
