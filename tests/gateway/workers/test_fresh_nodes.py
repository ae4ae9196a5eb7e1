"""Blank nodes of several forks of one process have different labels."""

from lamplighter.gateway.workers.fresh_nodes import FreshNodes
from tests.support.tables import each_row


@each_row("digits", [32, 31, 30, 29])
def test_labels_of_two_forks_differ_however_long_they_are(digits: int) -> None:
    label = "_:" + "b" + "0" * (digits - 1)
    term = f'<<( {label} <http://p/_:{"a" * digits}> "_:{"a" * digits}" )>>'
    one, two = FreshNodes(), FreshNodes()
    assert one.term(label) != two.term(label)
    assert one.term(term) != two.term(term)
    for fork in (one, two):
        assert len(fork.term(label)) == len(label)
        assert fork.term(label).startswith("_:b"), "a name in XML begins with a letter"
        assert fork.term(term) == term.replace(label, fork.term(label))
