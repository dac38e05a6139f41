from spotlight.actors.runtime.bounded_set import BoundedSet


def test_the_latest_keys_are_remembered_oldest_first():
    recent: BoundedSet[int] = BoundedSet(3)
    for key in (1, 2, 3, 1, 4):
        recent.add(key)
    assert list(recent) == [3, 1, 4]
    assert 1 in recent
    assert 2 not in recent
