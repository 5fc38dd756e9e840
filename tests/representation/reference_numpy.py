"""The linear methods in plain NumPy, a client at a time and from their definitions: independent of the library."""

from typing import NamedTuple

import numpy as np


class Data(NamedTuple):
    inputs: np.ndarray  # [clients, samples, features]
    targets: np.ndarray  # [clients, samples]
    truth: np.ndarray  # [clients, features]


def draw(rng, clients, samples, features, noise=0.3**0.5):
    """C.1's model."""
    size = min(clients, features)
    left, right = (np.linalg.qr(rng.standard_normal((rows, size)))[0] for rows in (features, clients))
    truth = right @ np.diag(2 * features / np.arange(2, size + 2)) @ left.T
    inputs = rng.standard_normal((clients, samples, features))
    targets = np.stack([x @ phi for x, phi in zip(inputs, truth, strict=True)])
    return Data(inputs, targets + noise * rng.standard_normal(targets.shape), truth)


def whitened(rng, clients, samples, features, noise=0.0):
    """The same with inputs whose XᵀX/N is exactly the identity: gradients as of an infinite sample."""
    data = draw(rng, clients, samples, features, noise)
    inputs = np.stack([np.linalg.qr(x)[0] * np.sqrt(samples) for x in data.inputs])
    return Data(inputs, np.einsum("mnd,md->mn", inputs, data.truth), data.truth)


def mean_error(basis, heads, truth):
    return np.mean([np.linalg.norm(basis @ w - phi) for w, phi in zip(heads, truth, strict=True)])


def flute(data, basis, heads, *, step, rounds, gammas=(1 / 4, 1 / 8), factor=1.0):
    """(5)-(6) as printed: each term the gradient of a term of (4), data gradients `factor` times the half loss's."""
    first, second = gammas
    errors = []
    for _ in range(rounds):
        of_basis, of_heads = np.zeros_like(basis), np.zeros_like(heads)
        for i, (x, y, w) in enumerate(zip(data.inputs, data.targets, heads, strict=True)):
            residual = x @ (basis @ w) - y
            of_basis += factor * x.T @ np.outer(residual, w) / len(y)
            of_heads[i] = factor * basis.T @ (x.T @ residual) / len(y)
        wide = heads.T  # W, rank × clients
        of_basis += -2 * first * (basis @ wide) @ wide.T + 4 * second * basis @ (basis.T @ basis)
        of_heads += (-2 * first * basis.T @ (basis @ wide) + 4 * second * (wide @ wide.T) @ wide).T
        basis, heads = basis - step * of_basis, heads - step * of_heads
        errors.append(mean_error(basis, heads, data.truth))
    return basis, heads, np.array(errors)


def heads_of(data, basis):
    return np.stack([np.linalg.lstsq(x @ basis, y)[0] for x, y in zip(data.inputs, data.targets, strict=True)])


def fedrep(data, basis, *, step, rounds):
    heads, errors = heads_of(data, basis), []
    for _ in range(rounds):
        gradients = [
            np.outer(x.T @ (x @ (basis @ w) - y) / len(y), w)
            for x, y, w in zip(data.inputs, data.targets, heads, strict=True)
        ]
        basis, upper = np.linalg.qr(basis - step * np.mean(gradients, 0))
        basis = basis * np.sign(np.diag(upper))
        heads = heads_of(data, basis)
        errors.append(mean_error(basis, heads, data.truth))
    return basis, heads, np.array(errors)


def moment_matrix(data):
    """The mean of y² x xᵀ, a sample at a time."""
    terms = [
        y**2 * np.outer(x, x)
        for xs, ys in zip(data.inputs, data.targets, strict=True)
        for x, y in zip(xs, ys, strict=True)
    ]
    return np.mean(terms, 0)


def with_penalties(data, penalty):
    """Each client's inputs and targets, and its penalty: one for all, or its own."""
    return zip(data.inputs, data.targets, np.broadcast_to(penalty, len(data.inputs)), strict=True)


def ridge(data, penalty):
    return np.stack(
        [
            np.linalg.solve(x.T @ x / len(y) + each * np.eye(x.shape[1]), x.T @ y / len(y))
            for x, y, each in with_penalties(data, penalty)
        ]
    )


def gcv(data, penalty):
    """Residuals and degrees of freedom from each client's hat matrix; the criterion, pooled over clients."""
    total, residual, unused = 0.0, 0.0, 0.0
    for x, y, each in with_penalties(data, penalty):
        count, features = x.shape
        hat = x @ np.linalg.solve(x.T @ x + count * each * np.eye(features), x.T)
        square, left = np.sum((y - hat @ y) ** 2), count - np.trace(hat)
        total, residual, unused = total + square / (left / count) ** 2, residual + square, unused + left
    return total, residual / unused  # criterion, noise variance


def empirical_bayes(data, penalty, even):
    """Posterior means after one expectation-maximisation step from the ridge prior, by inverses of d × d matrices.

    Penalties times numbers of samples are one number: the prior is that of all clients.
    """
    clients, features = len(data.inputs), data.inputs[0].shape[1]
    strength = {round(len(y) * each, 9) for _, y, each in with_penalties(data, penalty)}
    variance = gcv(data, penalty)[1]
    prior = variance / strength.pop() * np.eye(features)
    assert not strength

    def posterior(prior):
        for x, y in zip(data.inputs, data.targets, strict=True):
            covariance = np.linalg.inv(x.T @ x / variance + np.linalg.inv(prior))
            yield covariance @ (x.T @ y) / variance, covariance

    total = sum(np.outer(mean, mean) + covariance for mean, covariance in posterior(prior))
    total = total + even * np.trace(total) / (clients * features) * np.eye(features)
    return np.stack([mean for mean, _ in posterior(total / (clients + even))])


def truncated(matrix, rank):
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    return left[:, :rank] * values[:rank] @ right[:rank]


def basis_of(data, heads):
    """Least squares in B with the heads given, from the design matrix of all samples."""
    rows = [np.kron(sample, w) for x, w in zip(data.inputs, heads, strict=True) for sample in x]
    return np.linalg.lstsq(np.stack(rows), np.concatenate(data.targets))[0].reshape(data.inputs[0].shape[1], -1)


def descend_many(grams, moments, basis, heads, *, step, rounds):
    """FLUTE at γ = (1/4, 1/8) on many problems at once, from Gram matrices [R, M, d, d]: for the Monte Carlo tests."""
    for _ in range(rounds):
        gradient = (grams @ (heads @ basis.mT)[..., None])[..., 0] - moments
        imbalance = basis.mT @ basis - heads.mT @ heads
        basis, heads = (
            basis - step * (gradient.mT @ heads + basis @ imbalance / 2),
            heads - step * (gradient @ basis - heads @ imbalance / 2),
        )
    return heads @ basis.mT


def alternate_many(grams, moments, basis, *, step, rounds):
    """FedRep with the mean gradient on many problems at once."""

    def exact(basis):
        inner = basis.mT[:, None] @ grams @ basis[:, None]
        return np.linalg.solve(inner, (moments @ basis)[..., None])[..., 0]

    for _ in range(rounds):
        heads = exact(basis)
        gradient = (grams @ (heads @ basis.mT)[..., None])[..., 0] - moments
        basis = np.linalg.qr(basis - step / grams.shape[1] * gradient.mT @ heads)[0]
    return exact(basis) @ basis.mT
