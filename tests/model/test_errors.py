"""The error tree carries its data."""

import inspect
import re

from tailrace.model import errors
from tailrace.model.errors import ConfigError, InputError, RefusedError, TailraceError


def test_the_tree_in_the_docstring_is_the_tree():
    drawn = re.findall(r"(\w+Error)\b", errors.__doc__ or "")
    assert sorted(drawn) == sorted(errors.__all__)
    for name in errors.__all__:
        member = getattr(errors, name)
        assert issubclass(member, TailraceError)
        assert inspect.getdoc(member)


def test_an_input_error_is_one_sentence_with_its_place_and_remedy():
    error = ConfigError("unknown key `runing`", place="lanes[1]", remedy="Did you mean `running`?")
    assert str(error) == "lanes[1]: unknown key `runing`. Did you mean `running`?"
    assert str(InputError("no such run")) == "no such run"
    assert (error.place, error.remedy, error.http_status) == ("lanes[1]", "Did you mean `running`?", 400)


def test_status_hints_and_retries():
    assert RefusedError.http_status == 429
    assert RefusedError.retry_safe
    assert not TailraceError.retry_safe
