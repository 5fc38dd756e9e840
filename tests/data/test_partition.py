"""Partitions: every sample goes to one client, classes as the scheme has it, tests from the same classes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clairjax.data import ByGroup, Dirichlet, Federation, Scheme, Shards, Split, partition


KEY = jax.random.key(5)


def made(rng, samples=300, classes=10):
    labels = np.concatenate([np.arange(classes), rng.integers(0, classes, samples - classes)])
    return rng.integers(0, 256, (samples, 3, 4)).astype(np.uint8), labels


def held(split):
    return [np.asarray(row[:count]) for row, count in zip(split.rows, split.counts, strict=True)]


SCHEMES = {
    "shards": lambda labels: (Shards(2), 7),
    "shards that do not divide": lambda labels: (Shards(3), 11),
    "dirichlet": lambda labels: (Dirichlet(0.3), 7),
    "groups": lambda labels: (ByGroup(np.arange(len(labels)) % 5), None),
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_sample_is_dealt_once(rng, scheme):
    images, labels = made(rng)
    how, clients = SCHEMES[scheme](labels)
    found = partition(images, labels, scheme=how, clients=clients, key=KEY, test=0.25, validation=0.1)
    rows = [np.concatenate(each) for each in zip(*map(held, (found.train, found.test, found.validation)), strict=True)]
    everything = np.concatenate(rows)
    assert len(np.unique(everything)) == len(everything)
    # With seven clients and two shards each, all ten classes are dealt; so they are with eleven and three.
    assert len(everything) == len(labels)
    for train, test in zip(found.train.counts, found.test.counts, strict=True):
        assert abs(int(test) - 0.25 / 0.75 / 0.9 * int(train)) <= 2
    np.testing.assert_array_equal(found.images[..., 0], images)


def test_fewer_shards_than_classes_leave_classes_out(rng):
    images, labels = made(rng)
    found = partition(images, labels, scheme=Shards(1), clients=4, key=KEY, test=0.0)
    assert (found.table > 0).sum(1).tolist() == [1] * 4  # a client with one class is a client
    assert found.counts.sum() < len(labels)


def test_shards_of_a_class_are_of_one_size(rng):
    labels = np.repeat(np.arange(5), 60)
    found = partition(np.zeros((300, 3, 4), np.uint8), labels, scheme=Shards(2), clients=10, key=KEY, test=0.0)
    assert set(np.unique(found.table)) <= {0, 15, 30}
    assert (found.table.sum(0) == 60).all() and (found.table.sum(1) == 30).all()


def test_groups_stay_together(rng):
    images, labels = made(rng)
    ids = rng.permutation(np.repeat(["a", "b", "c"], 100))
    found = partition(images, labels, scheme=ByGroup(ids), key=KEY)
    groups = [set(ids[np.concatenate(pair)]) for pair in zip(held(found.train), held(found.test), strict=True)]
    assert groups == [{"a"}, {"b"}, {"c"}]


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("scheme", [Shards(2), Dirichlet(0.3)])
def test_a_test_set_of_its_own_follows_the_classes(rng, whole, scheme):
    """Clients are tested on classes they have; in their shares, or on all samples of their classes."""
    images, labels = made(rng)
    test_images, test_labels = made(rng, 90)
    found = partition(
        images, labels, scheme=scheme, clients=6, key=KEY, test=(test_images, test_labels), whole_classes=whole
    )
    rows = held(found.test)
    assert all((each >= 300).all() for each in rows)
    own = [set(labels[each].tolist()) for each in held(found.train)]
    tested = [set(test_labels[each - 300].tolist()) for each in rows]
    assert all(a <= b for a, b in zip(tested, own, strict=True))
    if whole:
        assert [len(each) for each in rows] == [np.isin(test_labels, list(classes)).sum() for classes in own]
    else:
        assert len(np.concatenate(rows)) == len(np.unique(np.concatenate(rows))) == 90


def test_a_key_gives_one_partition_and_another_another(rng):
    images, labels = made(rng)
    first, again, other = (
        partition(images, labels, scheme=Shards(2), clients=6, key=key) for key in (KEY, KEY, jax.random.key(6))
    )
    np.testing.assert_array_equal(first.train.rows, again.train.rows)
    assert (first.table != other.table).any()


def test_most_is_a_bound_on_training_samples(rng):
    found = partition(*made(rng), scheme=Dirichlet(1.0), clients=3, key=KEY, most=20)
    assert found.counts.tolist() == [20] * 3 and found.mask.shape == (3, 20)


def test_more_concentrated_shares_are_more_alike(rng):
    """The share of a client's largest class falls from near 1 towards 1/classes."""
    labels = np.repeat(np.arange(5), 200)
    tables = [
        partition(np.zeros((1000, 1, 1), np.uint8), labels, scheme=Dirichlet(a), clients=10, key=KEY).table
        for a in (0.05, 1.0, 100.0)
    ]
    largest = [np.mean(table.max(1) / table.sum(1)) for table in tables]
    assert largest[0] > 0.6 > largest[1] > largest[2] and largest[2] < 0.3


def arguments(rng, **changed):
    images, labels = made(rng)
    return {"images": images, "labels": labels, "scheme": Shards(2), "clients": 6, "key": KEY} | changed


BAD = [
    ({"images": np.zeros((300, 4))}, r"images must be of shape \(samples, height, width, channels\)"),
    ({"images": np.zeros((300, 3, 4), np.int64)}, r"images must be uint8 in 0 … 255, float32 or float64, got int64\."),
    ({"labels": np.zeros(299, int)}, r"labels must be of shape \(300,\), one for each image, got shape \(299,\)\."),
    ({"labels": np.zeros(300)}, r"labels must be integers, got float64\."),
    ({"labels": np.r_[np.zeros(7, int), -1, np.zeros(292, int)]}, r"labels must be 0 or more, got -1 at sample 7\."),
    ({"classes": 9}, r"labels must be in 0 … 8, got 9 at sample 9\."),
    ({"scheme": Shards(200)}, r"per_client must be few enough for a sample in each shard \(6 clients × per_client"),
    ({"clients": 0}, r"clients must be an integer of at least 1, got 0\."),
    ({"clients": None}, r"clients must be an integer of at least 1, got None\."),
    ({"test": 1.0}, r"test must be at least 0 and below 1, or \(images, labels\), got 1\.0\."),
    ({"validation": -0.1}, r"validation must be at least 0 and below 1, got -0\.1\."),
    ({"most": 0}, r"most must be an integer of at least 1, got 0\."),
    ({"scheme": Dirichlet(1e-3), "clients": 299}, r"concentration must be larger, or clients fewer: 299 clients"),
    ({"scheme": ByGroup([1, 2]), "clients": None}, r"ids must be of shape \(300,\), one for each image, got shape"),
    (
        {"scheme": ByGroup(np.arange(300) % 3)},
        r"clients must be left out or 3, the number of distinct ids",
    ),
]


class Mine(Scheme):
    """A scheme of somebody's own."""

    table: object

    def shares(self, labels, clients, rng):
        return self.table


BAD += [
    (
        {"scheme": Mine(np.ones((6, 9)) / 6)},
        r"Mine\.shares must be of shape \(6, 10\), clients and classes, got shape",
    ),
    (
        {"scheme": Mine(np.full((6, 10), 2.0))},
        r"Mine\.shares must be at least 0, and of each class 1 or 0 in all",
    ),
    ({"scheme": Mine(np.full((6, 10), np.nan))}, r"Mine\.shares must be at least 0, and of each class 1 or 0 in all"),
]


@pytest.mark.parametrize(("changed", "message"), BAD)
def test_bad_input_is_refused_by_name(rng, changed, message):
    given = arguments(rng, **changed)
    with pytest.raises(ValueError, match=message):
        partition(given.pop("images"), given.pop("labels"), **given)


def test_images_that_are_not_finite_are_named_by_sample(rng):
    images = rng.standard_normal((300, 3, 4))
    images[17, 0, 0] = np.nan
    with pytest.raises(ValueError, match=r"images must be finite, got NaN or infinite values in sample 17\."):
        partition(images, made(rng)[1], scheme=Shards(2), clients=6, key=KEY)


def test_a_test_set_of_another_kind_is_refused(rng):
    with pytest.raises(ValueError, match=r"test images must be of shape \(samples, \*\(3, 4, 1\)\) and uint8"):
        partition(**arguments(rng, test=(np.zeros((5, 3, 5), np.uint8), np.zeros(5, int))))
    with pytest.raises(ValueError, match=r"test must be a share where scheme is ByGroup without whole_classes"):
        scheme = ByGroup(np.arange(300) % 3)
        partition(**arguments(rng, scheme=scheme, clients=None, test=made(rng, 30)))


def test_a_federation_made_by_hand_is_checked():
    images, labels = jnp.zeros((4, 2, 2, 1)), jnp.array([0, 1, 0, 1])
    split, none = Split.of([np.array([0, 1]), np.array([2])]), Split.of([np.array([], int)] * 2)
    sound = Federation(images, labels, split, none, none, 2).check()
    assert sound.mask.tolist() == [[True, True], [True, False]] and sound.table.tolist() == [[1, 1], [1, 0]]
    outside = Split.of([np.array([0, 4]), np.array([2])])
    with pytest.raises(ValueError, match=r"train\.rows must be in 0 … 3, got 0 … 4\."):
        Federation(images, labels, outside, none, none, 2).check()
    with pytest.raises(ValueError, match=r"labels must be in 0 … 0, got 1 at sample 1\."):
        Federation(images, labels, split, none, none, 1).check()
    hollow, nobody = Split(jnp.zeros((2, 0), int), none.counts), Split.of([])
    with pytest.raises(ValueError, match=r"test\.rows must be integers, for one client or more, of one row or more"):
        Federation(images, labels, split, hollow, none, 2).check()
    with pytest.raises(ValueError, match=r"train\.rows must be integers, for one client or more, of one row or more"):
        Federation(images, labels, nobody, nobody, nobody, 2).check()
