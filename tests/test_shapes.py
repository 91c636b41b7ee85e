"""The shapes in annotations are checked while these tests run, and every one of them can be."""

import ast
import importlib
import pkgutil
from importlib.util import find_spec

import jax
import jax.numpy as jnp
import jaxtyping
import pytest

import detent
from detent.advantages import gae
from detent.heads import HEADS
from detent.moments import Moments

SOURCES = {
    found.name: source
    for found in pkgutil.walk_packages(detent.__path__, "detent.")
    if "from jaxtyping" in (source := find_spec(found.name).loader.get_source(found.name))
}
# It imports jaxtyping for mypy alone. What it annotates are protocols and named tuples, which nothing checks.
del SOURCES["detent.environments"]


def numbers(*shape):
    return jnp.zeros(shape, jnp.float32)


def never(*shape):
    return jnp.zeros(shape, jnp.bool_)


@pytest.mark.parametrize("call", [gae, jax.jit(gae)])
def test_a_function_refuses_another_shape(call):
    call(numbers(5, 2), numbers(6, 2), never(5, 2), never(5, 2), 0.9, 0.9)
    with pytest.raises(jaxtyping.TypeCheckError, match="'value'"):
        call(numbers(5, 2), numbers(5, 2), never(5, 2), never(5, 2), 0.9, 0.9)
    with pytest.raises(jaxtyping.TypeCheckError, match="'terminated'"):
        call(numbers(5, 2), numbers(6, 2), numbers(5, 2), never(5, 2), 0.9, 0.9)


def test_a_method_refuses_another_shape():
    discrete = HEADS.get("discrete")(bins=3)
    discrete.by_dimension(numbers(4, 6))
    with pytest.raises(jaxtyping.TypeCheckError, match="'x'"):
        Moments.zero((3,)).update(numbers(), numbers(1))


def test_a_dataclass_refuses_fields_of_other_shapes():
    Moments(numbers(3), numbers(3), numbers())
    with pytest.raises(jaxtyping.TypeCheckError, match="'var'"):
        Moments(numbers(3), numbers(2), numbers())


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_every_shape_can_be_checked(name):
    """jaxtyping checks nothing, and says nothing, where an annotation cannot be evaluated."""
    namespace = vars(importlib.import_module(name))
    for function in ast.walk(ast.parse(SOURCES[name])):
        if isinstance(function, ast.FunctionDef):
            arguments = function.args.posonlyargs + function.args.args + function.args.kwonlyargs
            for hint in (function.returns, *(one.annotation for one in arguments)):
                if hint is not None and "[" in (text := ast.unparse(hint)):
                    eval(text, namespace)
